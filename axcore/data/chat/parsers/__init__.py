"""What an answer is made of, by the format of its model's family: reasoning, text, calls."""
