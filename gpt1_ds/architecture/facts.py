"""What travels with the hidden states: int64 [B, 3], the facts of each row."""

from __future__ import annotations

KEY = 0  # of its dropout masks, 62 bits
UNTIL = 1  # every token sees those before this position: a bidirectional row's length; unread in a causal model
SECOND = 2  # where its second segment begins; unread in a model without segments
COLUMNS = 3
