"""Other memory engines behind the ports of afterturn."""
