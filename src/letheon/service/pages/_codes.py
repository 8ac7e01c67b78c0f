"""Measures, levels of an audit and drills in words."""

__all__ = ["DRILLS", "LEVEL_WORDS", "MEASURES"]

MEASURES = {
    "efficiency": ("Efficiency", "How many times faster than training afresh.", "×"),
    "effectiveness": ("Effectiveness", "Loss of quality against a retrained model.", ""),
    "consistency": ("Consistency", "Distance of the parameters from a retrained model.", ""),
    "certifiability": ("Certifiability", "How far the model can be told from a retrained one.", ""),
}
"""Title, meaning and unit of the four measures."""

LEVEL_WORDS = {
    "V0": "Signatures, schema and chain of the certificates",
    "V1": "The log: nothing was dropped, changed or put in between",
    "V2": "The data: erased rows are gone from the commitment, nothing else moved",
    "V3": "Residue: the purges, and what the search of the stores found",
    "V4": "Re-derivation: the model is trained again and compared",
    "V5": "Bound: epsilon and delta follow from rows and settings",
    "V6": "Canaries that an auditor planted",
    "own": "Measures of the auditor's own",
}
"""What an audit looks at on each level."""

DRILLS = {
    "none": "No drill: audit the ledger as it is",
    "model": "Drill: change one byte of a model file in the copy",
    "certificate": "Drill: change one byte of a certificate in the copy",
    "log": "Drill: change one byte of the log in the copy",
}
"""What a drill damages, in a copy, so that an audit must fail."""
