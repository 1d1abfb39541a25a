"""Workers: a function for each record, with retries, dead letters and order; `app.py` is where programs begin."""
