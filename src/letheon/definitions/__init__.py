"""Definition texts of the methods: claim, assumptions, pseudo-code, proof or reference."""
