"""What programs that use Semel test with: a broker in the test process, faults, pytest's fixtures, a container."""
