from headrace.testing import ManualClock, factories

timeless_broker = factories.broker(clock=ManualClock, scope="function")
