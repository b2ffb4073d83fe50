"""Conversations: their chat templates, and which of their tokens are answers."""
