"""What an operator sees, types and relies on."""
