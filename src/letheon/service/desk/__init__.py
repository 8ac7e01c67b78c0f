"""What the API and the pages share: one file per subject, plain functions over a ledger."""
