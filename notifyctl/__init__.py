"""notifyctl: transactional email and SMS from a durable ledger."""

__version__ = "0.1.0"
