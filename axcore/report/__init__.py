"""What people look at: text in columns."""
