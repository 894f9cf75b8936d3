#!/usr/bin/env python3
"""Instructions per element of every operator and type, counted by callgrind: no busy machine blurs them.

    instruction_budget_test.py PROGRAM            fails when a case leaves its line
    instruction_budget_test.py --update PROGRAM   writes what it counted to instruction_budget.txt

PROGRAM is the built instruction_budget. It runs with AVX2, the most that Debian 12's valgrind knows,
and with one thread.
"""
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile

BUDGET = pathlib.Path(__file__).with_name("instruction_budget.txt")
HEADER = """\
# Instructions per element (AVX2, one thread, g++ 12 -O3), checked by instruction_budget_test.py, which
# also rewrites this file: tests/instruction_budget_test.py --update build/release/tests/instruction_budget
# operator, statistics, layout, shape (samples x channels x length), type, instructions per element
"""
MOST = 1.03   # one more instruction per vector of 8 floats is 0.125: 3 % of a kernel that needs 4
LEAST = 0.90  # a line this far above the truth would let the next slow-down pass


def count(program):
    """{case: instructions per element}, in the program's order."""
    environment = {**os.environ, "NORMGRAD_IMPL": "cpu:avx2", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        result = subprocess.run(
            ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--dump-line=no",
             f"--callgrind-out-file={folder}/dump", program],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if result.returncode != 0:
            sys.exit(f"{program} failed under callgrind:\n{result.stdout}")
        # dump.1, dump.2, ... are those the program asked for; dump is what follows the last one.
        dumps = sorted(pathlib.Path(folder).glob("dump.*"), key=lambda path: int(path.suffix[1:]))
        texts = [path.read_text() for path in dumps]
    counted = {}
    for text in texts:
        case = re.search(r"^desc: Trigger: Client Request: (.+)$", text, re.MULTILINE)[1]
        instructions = int(re.search(r"^totals: (\d+)$", text, re.MULTILINE)[1])
        elements = math.prod(int(size) for size in case.split()[3].split("x"))
        counted[case] = instructions / elements
    return counted


def read_budget():
    lines = [line.split() for line in BUDGET.read_text().splitlines() if not line.startswith("#")]
    return {" ".join(case): float(figure) for *case, figure in lines}


def write_budget(counted):
    lines = ["{:<10}  {:<13}  {:<14}  {:<8}  {:<4}  {:>7.3f}\n".format(*case.split(), figure)
             for case, figure in counted.items()]
    BUDGET.write_text(HEADER + "".join(lines))


def complaints(budget, counted):
    """A sentence for each case that is not as its line says."""
    for case in sorted(budget.keys() - counted.keys()):
        yield f"{case}: has a line in {BUDGET.name}, but the program does not count it"
    for case, figure in counted.items():
        if case not in budget:
            yield f"{case}: expected a line in {BUDGET.name}, found none; got {figure:.3f}"
            continue
        expected = budget[case]
        if not LEAST * expected <= figure <= MOST * expected:
            meaning = "slower" if figure > expected else "faster: tighten the line"
            yield (f"{case}: expected {expected:.3f} instructions per element, got {figure:.3f} "
                   f"({100 * (figure / expected - 1):+.1f} %), {meaning}")


def main():
    update = "--update" in sys.argv[1:]
    programs = [argument for argument in sys.argv[1:] if argument != "--update"]
    if len(programs) != 1:
        sys.exit(__doc__)
    counted = count(programs[0])
    if update:
        write_budget(counted)
        return
    wrong = list(complaints(read_budget(), counted))
    if wrong:
        sys.exit("\n".join(wrong) + f"\nIf that is meant: {sys.argv[0]} --update {programs[0]}")
    print(f"{len(counted)} cases within their lines")


if __name__ == "__main__":
    main()
