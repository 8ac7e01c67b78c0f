"""The database of a ledger: connections, migrations, the log, pages of lists."""
