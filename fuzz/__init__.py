"""A standing attack on everything that reads files of strangers: `make fuzz`, or `python -m fuzz --help`. Linux only.

Each case changes something genuine (an image, a zip, a run's folder, a report, a file of settings), gives it to the
command or function that a user would give it to, in a process of its own, and looks at what happens there. Refusing it
with an error of memwrap is right, and so is accepting it. A crash, a hang, much memory, a file written elsewhere, a
connection, another program, unpickled code, or a report that is confirmed but shows something else is a finding.

    sandbox.py     one case in a process of its own, and what is wrong with how it ended
    audit.py       what a process must not do, noticed while it does it
    genuine.py     what is changed: small runs, reports and images, made at the start
    mutations.py   random changes to JSON values and tensor files; those to images, zips and reports are with the tests
    kinds/         what each kind of case makes and calls
    shown.py       whether a page shows what its run gives, decided without the verification that is attacked
    campaign.py    case after case, and the table at the end

`kills.py` is another attack: it kills trainings, and looks at what is left.
"""
