"""Runnable examples of Spark with Semel, on real data: the flights that left New York City in 2013."""
