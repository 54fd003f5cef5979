"""The ray engine: every role is an actor of Ray, on one machine or on many."""
