"""Who is there, and what they may do: principals, SASL mechanisms, access control. No I/O, no clock."""
