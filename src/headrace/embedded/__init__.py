"""`headrace.Broker`: a broker in the process of a program, in memory or in a directory, with its clock."""
