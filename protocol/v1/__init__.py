"""Generated from proto/semel/v1 by `make proto`. Do not edit."""
