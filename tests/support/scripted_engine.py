"""An engine that writes what a test says, by the tokens of a tokenizer."""

from axcore.data import decoded
from axcore.inference.completion import CompletionStream, TokenDelta
from axcore.inference.detokenizer import IncrementalDetokenizer


class ScriptedEngine:
    """Stands in for an engine: each request gets the same answer, some tokens at a time.

    Args:
        engine: What answers all other questions.
        tokenizer: Whose tokens are written.
        text: What is answered; special tokens are written out.
        size: Tokens of a delta.
        has_end: Whether the model ends the text; otherwise the limit does.
    """

    def __init__(self, engine, tokenizer, text, *, size=1, has_end=True):
        self._engine, self.tokenizer, self._size = engine, tokenizer, size
        self.tokens = tokenizer.encode_placed(text).tokens.tolist()
        self._has_end = has_end
        self.requests = []

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def submit(self, request):
        self.requests.append(request)
        text = IncrementalDetokenizer(
            self.tokenizer,
            request.prompt,
            request.stop,
            request.visible_tokens,
            includes_stop=request.includes_stop,
            min_tokens=request.min_tokens,
        )
        stream = CompletionStream(request, text, lambda: None)
        for place in range(0, len(self.tokens), self._size):
            stream.put(TokenDelta(self.tokens[place : place + self._size]))
        if self._has_end:
            stream.put(TokenDelta([self.tokenizer.eos_id], None, "stop", True))
        else:
            stream.put(TokenDelta((), None, "length"))
        return stream

    @property
    def text(self):
        return decoded(self.tokenizer, self.tokens)
