"""The mask job, which makes copies with fields dropped, masked, hashed or encrypted."""
