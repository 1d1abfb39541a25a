"""The broker: one synchronous object that answers requests, in whichever shell it is put."""
