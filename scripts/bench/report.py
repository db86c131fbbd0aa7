"""Tables, as aligned text or as Markdown."""

import statistics

# Of these a table has the sum over the rounds, since one is one too many.
FAULTS = ("errors", "mismatches")


class Report:
    def __init__(self, markdown):
        self.markdown = markdown

    def say(self, text=""):
        print(text, flush=True)  # a table at a time, also into a pipe

    def header(self, lines):
        self.say("# forebay bench\n" if self.markdown else "forebay bench\n")
        for name, text in lines:
            self.say("- %s: %s" % (name, text) if self.markdown else name.ljust(9) + text)
        self.say()

    def notes(self, texts):
        for text in texts:
            self.say("- " + text if self.markdown else text)
        if texts:
            self.say()

    def work(self, title, columns, rows, notes):
        """Writes the runs of a work: rows are names and figures by round."""
        self.say(("## " if self.markdown else "") + title)
        if self.markdown:
            self.say()
        head = [""] + [c.title for c in columns] + list(FAULTS)
        body = [[name] + cells(columns, runs) for name, runs in rows.items()]
        body += ratio_rows(columns, rows)
        self.table(head, body)
        self.say()
        self.notes(notes)

    def table(self, head, body):
        lines = [head] + body
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        edge, between = ("| ", " | ") if self.markdown else ("", "  ")
        for i, line in enumerate(lines):
            padded = [line[0].ljust(widths[0])]
            padded += [cell.rjust(w) for cell, w in zip(line[1:], widths[1:])]
            self.say((edge + between.join(padded) + edge[::-1]).rstrip())
            if i == 0 and self.markdown:
                rule = ["-" * widths[0]] + ["-" * (w - 1) + ":" for w in widths[1:]]
                self.say(edge + between.join(rule) + edge[::-1].rstrip())


def cells(columns, runs):
    """Returns a row: medians over the rounds, and the sums of the faults."""
    row = []
    for c in columns:
        values = [run[c.key] for run in runs if c.key in run]
        row.append(c.form.format(statistics.median(values)) if values else "-")
    return row + ["{:,}".format(sum(run[key] for run in runs)) for key in FAULTS]


def add_p50(runs):
    """Adds to the runs of one round by how much they take longer than the direct one.
    What is below the resolution of the clock is no better than it."""
    direct = runs.get("direct", {}).get("p50")
    for name, run in runs.items():
        if direct and name != "direct" and "p50" in run:
            run["added"] = max(run["p50"] - direct, 1)


def ratio_rows(columns, rows):
    """Returns for each forebay its figures over those of the best peer in the same
    round: the median over the rounds and, if there are several, the extremes."""
    table = []
    for name in [n for n in rows if n.startswith("forebay")]:
        medians, spreads = ["ratio" + name[len("forebay") :]], ["  lowest–highest"]
        for c in columns:
            ratios = ratios_of(c, rows, name)
            medians.append("{:.2f}".format(statistics.median(ratios)) if ratios else "")
            spread = "{:.2f}–{:.2f}".format(min(ratios), max(ratios)) if ratios else ""
            spreads.append(spread)
        empty = [""] * len(FAULTS)
        if any(medians[1:]):
            table.append(medians + empty)
            table += [spreads + empty] if len(rows[name]) > 1 else []
    return table


def ratios_of(column, rows, name):
    if column.best is None:
        return []
    peers = [runs for n, runs in rows.items() if n != "direct" and not n.startswith("forebay")]
    ratios = []
    for i, run in enumerate(rows[name]):
        # A run with faults did less than it was asked, and is no measure.
        sound = [p[i] for p in peers if i < len(p) and not any(p[i][f] for f in FAULTS)]
        values = [p[column.key] for p in sound if p.get(column.key, 0) > 0]
        if values and column.key in run:
            ratios.append(run[column.key] / column.best(values))
    return ratios
