"""The records that workers write: at once, or in the transaction that commits their input."""
