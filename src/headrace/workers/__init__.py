"""Workers: functions that handle records, with order, retries and dead letters. Programs begin with `app.py`."""
