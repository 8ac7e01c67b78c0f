"""What the service keeps in the ledger's database: tokens, jobs, webhooks."""
