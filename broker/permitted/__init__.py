"""What clients may have done, as far as their rights go: both listeners call handlers and coordinators through here."""
