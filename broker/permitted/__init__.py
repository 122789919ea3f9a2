"""What clients may have done, as far as their rights go: both listeners call handlers and coordinators through here.

What changes something is `done_to_its_end`, because the audit log tells of it then: also where the client has hung up.
"""
