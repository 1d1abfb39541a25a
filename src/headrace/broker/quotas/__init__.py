"""The quotas of clients, and the throttling of requests above them."""
