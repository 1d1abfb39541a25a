"""Access to the broker: authentication, ACLs, permission checks, and the audit log."""
