"""Looking into a data folder from outside: what its files say, what is wrong, what a start would do."""
