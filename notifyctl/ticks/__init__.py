"""The bounded runs: each claims, processes, records and ends. No SQL here, no provider's name, no command line."""
