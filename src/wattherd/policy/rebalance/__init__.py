"""What should move, pack, slice or sleep."""
