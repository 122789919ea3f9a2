"""Transactions that several producers share."""
