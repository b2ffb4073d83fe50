"""Text to tokens and back: bytes, Hugging Face, SentencePiece, GGUF vocabularies."""
