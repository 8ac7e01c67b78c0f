"""Database of a ledger: connections, migrations, the log, and pages of lists."""
