"""How Headrace talks to AWS: settings, clients, and their failures in words."""
