"""Who may do what, and who did: for now the audit log."""
