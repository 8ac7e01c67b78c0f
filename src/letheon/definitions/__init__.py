"""Definition texts of the methods: claim, assumptions, pseudo-code, and proof or reference."""
