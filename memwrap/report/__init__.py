"""Explanations to look at and to send: pictures, a page that stands alone, and the proof of what it says."""
