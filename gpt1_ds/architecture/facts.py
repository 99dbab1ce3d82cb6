"""What travels with the hidden states: int64 [B, F], the facts of each row. F is 3 where a row is one document."""

from __future__ import annotations

KEY = 0  # of its dropout masks, 62 bits
UNTIL = 1  # every token sees those before this position: a bidirectional row's length; unread in a causal model
SECOND = 2  # where its second segment begins; unread in a model without segments
COLUMNS = 3

# Where a row holds several documents that do not see one another, bounds follow: for each position where its document
# begins, then for each where it ends, the position after its last. Of one stack of S positions these are 2 S columns.
# Of two they are 2 S of the first stack, 2 T of the second, and 2 T: where the document of each position of the second
# stack lies in the first. model/documents.py reads them.
