"""Real servers for tests: started on the loopback interface with free ports, stopped at the end.

Where a program is not installed the test is skipped with its name, unless
TACHOGRAPH_REQUIRE_SERVERS=1: then it fails.
"""
