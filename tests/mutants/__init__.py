"""`make mutants`: plants the kept faults one at a time, and reports which of them the tests do not notice."""
