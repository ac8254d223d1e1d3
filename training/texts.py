"""Text: what is spoken, what is asked and answered, what is kept out of training, and the text tokenizer.

    python texts.py OUT_DIR [--wordnet /usr/share/wordnet] [--tokenizer FOLDER] [--limit N]

Sources: WordNet 3.0 (examples, definitions, all of its words; Debian wordnet-base, WordNet license, BSD-like) and
templates written here. Writes texts.txt (one utterance a line, the most needed first), tasks.jsonl (question, answer,
weight), heldout.txt, hard.txt and random.txt (kept out of everything), extra.json and the tokenizer's files: those of
FOLDER if given, so that stages can go on from earlier weights, else new ones.
"""

import argparse, json, os, random, re, shutil, sys

R = random.Random(7)
HERE = os.path.dirname(os.path.abspath(__file__))
ap = argparse.ArgumentParser()
ap.add_argument("out")
ap.add_argument("--wordnet", default="/usr/share/wordnet")
ap.add_argument("--tokenizer", default="")
ap.add_argument("--limit", type=int)
A = ap.parse_args()
OUT, WN = A.out, A.wordnet
os.makedirs(OUT, exist_ok=True)
BAD = re.compile(
    r"\b(fuck\w*|shit\w*|cunt\w*|nigg\w*|whore\w*|slut\w*|rape\w*|penis|vagina\w*|anus|porn\w*|bitch\w*|bastard\w*|fag\w*|kike\w*|jew\w*|negro\w*|nazi\w*|sex\w*|coit\w*|copulat\w*|genital\w*|testic\w*|semen|hitler|suicid\w*|masturb\w*|incest\w*|prostitut\w*)\b",
    re.I,
)
OK = re.compile(r"^[A-Za-z0-9 ,.'!?;:-]+$")


def clean(s, end=True):
    s = s.replace("`", "'").replace("--", ", ").replace("...", ", ").replace(" - ", ", ")
    s = re.sub(r"\s+", " ", s).strip(" ,;:-'")
    s = re.sub(r"\s+([,.!?;:])", r"\1", s)
    if not s or not OK.match(s) or BAD.search(s):
        return None
    if re.search(r"\b[A-Z]{2,}\b", s) or re.search(r"\d{3,}", s) or re.search(r"\w\.\w", s):
        return None
    return s


def finish(s):
    """Mostly sentence case with a final mark; sometimes left as typed (no capital, no period)."""
    r = R.random()
    if r < 0.85:
        s = s[0].upper() + s[1:]
    if s[-1] not in ".!?" and r < 0.88:
        s += "."
    return s


# ---------------------------------------------------------------- WordNet
ex, gl = [], []
for p in ("noun", "verb", "adj", "adv"):
    for l in open(f"{WN}/data.{p}"):
        if l.startswith("  ") or "|" not in l:
            continue
        g = l.split("|", 1)[1].strip()
        ex += re.findall(r'"([^"]+)"', g)
        d = re.sub(r"\([^)]*\)", "", g.split('"')[0]).strip(" ;").split(";")[0]
        gl.append(d)


def pick(seq, lo, hi):
    out = []
    for s in dict.fromkeys(seq):
        c = clean(s)
        if c and lo <= len(c.split()) <= hi and len(c) <= 130:
            out.append(c)
    return out


ex, gl = pick(ex, 2, 24), pick(gl, 3, 20)
R.shuffle(ex)
R.shuffle(gl)
full = [
    s
    for s in ex
    if 5 <= len(s.split()) <= 14
    and s[0].isupper()
    or re.match(r"(he|she|they|we|the|his|her|i|you|it)\b", s)
    and 5 <= len(s.split()) <= 14
]
held = (
    open(f"{HERE}/heldout.txt").read().split("\n")[:-1]
)  # 200 sentences; the first 150 are those of the earlier voice
hard = open(f"{HERE}/hard.txt").read().split("\n")[:-1]  # numbers, dates, names
bare = lambda s: re.sub(r"[^a-z0-9 ]", "", s.lower()).strip()

# frequent words (for single-word utterances and word salads)
freq = {}
for l in open(f"{WN}/cntlist.rev"):
    a, _, c = l.split()
    w = a.split("%")[0]
    if re.fullmatch(r"[a-z]{2,12}", w) and not BAD.search(w):
        freq[w] = freq.get(w, 0) + int(c)
words = sorted(freq, key=lambda w: -freq[w])
W8 = words[:9000]

# ---------------------------------------------------------------- templates
names = "Anna Ben Carla David Emma Frank Grace Henry Isabel Jack Kate Liam Maria Nora Oliver Paul Rachel Sam Tom Victor Wendy Alice Bob Charlie Diana Edward Fiona George Hannah Ivan Julia Kevin Laura Mike Nina Oscar Peter Rose Steve Tina Lucy Max Sarah John Mary James Robert Linda Susan Daniel".split()
places = "the park|the beach|the office|the kitchen|the library|the station|the market|school|the garden|the museum|the hospital|the airport|the bank|the theater|the restaurant|the mountain|the river|the lake|the village|the city|the bookstore|the bakery|the post office|the hotel|the farm|the harbor|the bridge|my house|your house|the gym".split(
    "|"
)
things = "book cup phone key chair table lamp letter bag coat hat shoe ball box bottle ticket camera map clock picture pencil plate spoon umbrella window door car bicycle boat train computer radio piano guitar flower tree stone ring blanket basket candle mirror knife towel pillow".split()
adjs = "small big red blue green old new clean dirty heavy light warm cold bright dark quiet loud soft hard beautiful strange simple round square broken empty full cheap expensive lovely tiny huge wooden golden silver yellow black white".split()
foods = "bread|soup|rice|an apple|a sandwich|some cheese|a salad|pizza|pasta|fish|chicken|an orange|cake|ice cream|a banana|potatoes|eggs|pancakes|chocolate|vegetables|a cup of tea|a glass of water|coffee|orange juice|milk".split(
    "|"
)
verbs = "read write sing dance swim run walk cook paint play sleep eat talk listen wait work study travel help laugh".split()
days = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
months = "January February March April May June July August September October November December".split()
weather = "sunny rainy cloudy windy snowy foggy hot cold warm cool stormy dry".split()
colors = "red orange yellow green blue purple pink brown black white gray".split()
ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
TENS = "x x twenty thirty forty fifty sixty seventy eighty ninety".split()


def num(n):
    if n < 20:
        return ONES[n]
    if n < 100:
        return TENS[n // 10] + ("" if n % 10 == 0 else "-" + ONES[n % 10])
    if n < 1000:
        return ONES[n // 100] + " hundred" + ("" if n % 100 == 0 else " and " + num(n % 100))
    return num(n // 1000) + " thousand" + ("" if n % 1000 == 0 else " " + num(n % 1000))


c = R.choice


def n_(lo, hi):
    n = R.randint(lo, hi)
    return num(n) if R.random() < 0.6 else str(n)


TPL = [
    lambda: f"{c(names)} went to {c(places)} on {c(days)}.",
    lambda: f"I saw {c(names)} at {c(places)} this {c(['morning', 'afternoon', 'evening'])}.",
    lambda: f"Where is my {c(adjs)} {c(things)}?",
    lambda: f"The {c(adjs)} {c(things)} is {c(['on', 'under', 'next to', 'behind', 'in front of'])} the {c(things)}.",
    lambda: f"Can you {c(verbs)} with {c(names)} {c(['today', 'tomorrow', 'tonight', 'next week'])}?",
    lambda: f"I would like {c(foods)} and {c(foods)}, please.",
    lambda: f"It is {c(weather)} and {c(weather)} today.",
    lambda: f"It will be {c(weather)} on {c(days)}.",
    lambda: f"My birthday is in {c(months)}.",
    lambda: f"There are {n_(2, 99)} {c(things)}s in the {c(things)}.",
    lambda: f"I have {n_(2, 30)} {c(adjs)} {c(things)}s.",
    lambda: f"{c(names)} is {n_(3, 99)} years old.",
    lambda: f"The {c(things)} costs {n_(2, 99)} dollars.",
    lambda: f"It costs {n_(1, 60)} dollars and {n_(2, 99)} cents.",
    lambda: f"The meeting starts at {n_(1, 12)} o'clock on {c(days)}.",
    lambda: f"The train leaves at {R.randint(1, 12)}:{R.randint(10, 59)}.",
    lambda: f"Wake me up at {R.randint(1, 12)}:{c(['00', '15', '30', '45'])}.",
    lambda: f"Today is {c(days)}, {c(months)} {R.randint(1, 31)}.",
    lambda: f"She was born in {R.randint(1900, 2020)}.",
    lambda: f"That was in the year {R.randint(1700, 2025)}.",
    lambda: (
        f"Please {c(['open', 'close', 'clean', 'bring me', 'find', 'paint', 'carry', 'look at', 'give me', 'show me'])} the {c(adjs)} {c(things)}."
    ),
    lambda: f"Do you want to {c(verbs)} or {c(verbs)}?",
    lambda: f"I don't like to {c(verbs)} in {c(places)}.",
    lambda: (
        f"{c(names)} and {c(names)} are {c(['friends', 'neighbors', 'brother and sister', 'in the kitchen', 'late again', 'at home'])}."
    ),
    lambda: f"What did {c(names)} {c(['buy', 'say', 'eat', 'see', 'bring', 'read', 'forget'])} yesterday?",
    lambda: f"Why is the {c(things)} so {c(adjs)}?",
    lambda: f"How much is the {c(adjs)} {c(things)}?",
    lambda: f"Who took my {c(things)}?",
    lambda: f"We ate {c(foods)} at {c(places)}.",
    lambda: f"Let's {c(verbs)} at {c(places)}, {c(names)}.",
    lambda: f"Thank you, {c(names)}, for the {c(adjs)} {c(things)}.",
    lambda: f"The number is {R.randint(0, 9)} {R.randint(0, 9)} {R.randint(0, 9)} {R.randint(0, 9)}.",
    lambda: f"{num(R.randint(0, 999)).capitalize()}.",
    lambda: f"{R.randint(0, 999)}.",
    lambda: f"{num(R.randint(1, 99)).capitalize()}, {num(R.randint(1, 99))}, {num(R.randint(1, 99))}.",
    lambda: f"We counted {n_(100, 999)} {c(things)}s.",
    lambda: f"The population was {num(R.randint(2, 90) * 1000)}.",
    lambda: f"Turn {c(['left', 'right'])} at {c(places)} and walk {n_(2, 20)} minutes.",
    lambda: f"I think the {c(things)} is {c(colors)}, not {c(colors)}.",
    lambda: f"Don't forget your {c(things)}, {c(names)}!",
    lambda: f"Good {c(['morning', 'afternoon', 'evening', 'night'])}, {c(names)}.",
    lambda: f"Hello, {c(names)}. How are you?",
    lambda: f"My name is {c(names)}.",
    lambda: f"Is {c(names)} coming to {c(places)}?",
    lambda: f"You're very {c(['kind', 'funny', 'late', 'quiet', 'smart', 'tired', 'lucky', 'brave'])}, {c(names)}.",
    lambda: (
        f"{c(['Maybe', 'Perhaps', 'Of course', 'Well', 'Yes', 'No', 'Sorry', 'Please', 'However', 'Actually'])}, {c(names)} {c(['will help us', 'is right', 'cannot come', 'has the key', 'lost the ticket', 'likes music'])}."
    ),
    lambda: " ".join(R.sample(W8, R.randint(2, 7))),
    lambda: ", ".join(R.sample(W8, R.randint(2, 5))) + ".",
    lambda: c(W8).capitalize() + ".",
    lambda: c(W8),
    lambda: f"The {c(W8)} and the {c(W8)}.",
    lambda: f"What does {c(W8)} mean?",
    lambda: f"I said {c(W8)}, not {c(W8)}.",
    lambda: f"Is it a {c(W8)} or a {c(W8)}?",
]
# more: names, numbers, dates, money, lists, abbreviations; both as digits and in words
surnames = "Smith Johnson Williams Brown Jones Garcia Miller Davis Martinez Anderson Taylor Thomas Moore Jackson Martin Lee Thompson White Harris Clark Lewis Robinson Walker Young Allen King Wright Scott Torres Nguyen Hill Flores Green Adams Nelson Baker Hall Rivera Campbell Mitchell Carter Roberts Schmidt Weber Fischer Rossi Moreau Novak Kowalski Ivanov Tanaka Chen Patel Singh Okafor Hansen Larsson O'Brien Murphy Kelly Sullivan".split()
firsts = (
    names
    + "Ahmed Aisha Amelia Andrea Ananya Bianca Boris Camille Chloe Dmitri Elena Emil Fatima Felix Gabriela Giovanni Hassan Ingrid Isabella Jasmine Jorge Kenji Lars Leila Lorenzo Magnus Marcus Mateo Mei Mohammed Natalia Nikolai Olga Omar Pablo Priya Quentin Rafael Renata Ruth Samuel Sofia Sven Tariq Theodore Ulrich Valentina Vivian Walter Xavier Yasmin Yuki Zoe Abigail Benjamin Christopher Elizabeth Jonathan Katherine Margaret Nicholas Patricia Stephanie Timothy Victoria William".split()
)
cities = "London Paris Berlin Rome Madrid Vienna Prague Lisbon Dublin Oslo Stockholm Helsinki Warsaw Athens Cairo Nairobi Lagos Mumbai Delhi Bangkok Singapore Tokyo Seoul Beijing Shanghai Sydney Melbourne Toronto Montreal Vancouver Chicago Boston Seattle Denver Dallas Houston Atlanta Miami Phoenix Portland Philadelphia Edinburgh Glasgow Manchester Liverpool Munich Hamburg Zurich Geneva Brussels Amsterdam Barcelona Milan Naples Istanbul Jerusalem Nairobi Johannesburg Lima Bogota Santiago Havana".split()
orgs = "the university|the hospital|the company|the library|the orchestra|the council|the museum|the ministry|the newspaper|the bank".split(
    "|"
)
ORD = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth twentieth twenty-first twenty-second twenty-third twenty-fourth twenty-fifth twenty-sixth twenty-seventh twenty-eighth twenty-ninth thirtieth thirty-first".split()


def year_words(y):
    a, b = divmod(y, 100)
    if 2000 <= y < 2010:
        return "two thousand" + (" and " + num(b) if b and R.random() < 0.5 else " " + num(b) if b else "")
    return num(a) + (" hundred" if b == 0 else " oh " + num(b) if b < 10 else " " + num(b))


def big(n):
    if n < 1000:
        return num(n)
    if n < 10**6:
        return num(n // 1000) + " thousand" + (" " + big(n % 1000) if n % 1000 else "")
    return num(n // 10**6) + " million" + (" " + big(n % 10**6) if n % 10**6 else "")


def time_words():
    h, m = R.randint(1, 12), R.choice([0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55] + list(range(60)))
    t = num(h) + (
        " o'clock" if m == 0 and R.random() < 0.5 else "" if m == 0 else " oh " + num(m) if m < 10 else " " + num(m)
    )
    return t + R.choice(["", "", " A M", " P M", " in the morning", " in the evening"])


person = lambda: f"{c(firsts)} {c(surnames)}"
anyint = lambda: R.choice(
    [
        R.randint(0, 20),
        R.randint(0, 99),
        R.randint(100, 999),
        R.randint(1000, 9999),
        R.randint(10**4, 10**6),
        R.choice([10, 100, 1000, 10**4, 10**5, 10**6]) * R.randint(1, 99),
    ]
)
anyyear = lambda: R.choice([R.randint(1500, 1999), R.randint(1900, 1999), R.randint(2000, 2035)])
day_words = lambda: R.choice(
    [
        lambda: f"{c(months)} {c(ORD)}",
        lambda: f"the {c(ORD)} of {c(months)}",
        lambda: f"{c(days)}, {c(months)} {c(ORD)}",
    ]
)()
letters = lambda: " ".join(R.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(R.randint(2, 4)))
unit = "kilometers miles meters feet inches kilograms pounds grams liters degrees minutes hours seconds days weeks months years percent dollars euros people students pages copies votes points gallons acres".split()
MORE = [
    lambda: f"{person()} was born on {day_words()}, {year_words(anyyear())}.",
    lambda: f"{person()} moved from {c(cities)} to {c(cities)} in {year_words(anyyear())}.",
    lambda: (
        f"In {year_words(anyyear())}, {c(orgs)} employed {big(anyint())} {c(['people', 'students', 'workers', 'musicians'])}."
    ),
    lambda: f"The distance from {c(cities)} to {c(cities)} is {big(anyint())} {c(['kilometers', 'miles'])}.",
    lambda: (
        f"The meeting with {R.choice(['Mister', 'Missus', 'Doctor', 'Professor', 'Miss'])} {c(surnames)} is at {time_words()} on {c(days)}."
    ),
    lambda: (
        f"It weighs {big(R.randint(1, 400))} point {' '.join(num(R.randint(0, 9)) for _ in range(R.randint(1, 3)))} {c(['kilograms', 'pounds', 'grams', 'tons'])}."
    ),
    lambda: f"We sold {big(anyint())} {c(unit)} for {big(anyint())} dollars and {num(R.randint(2, 99))} cents.",
    lambda: f"About {num(R.randint(1, 99))} percent of the {c(unit)} came from {c(cities)}.",
    lambda: (
        f"Call {' '.join(num(R.randint(0, 9)) for _ in range(3))}, {' '.join(num(R.randint(0, 9)) for _ in range(4))} and ask for {c(firsts)}."
    ),
    lambda: (
        f"Flight {letters()} {' '.join(num(R.randint(0, 9)) for _ in range(R.randint(2, 4)))} to {c(cities)} leaves at {time_words()}."
    ),
    lambda: f"{big(anyint()).capitalize()}.",
    lambda: f"{big(anyint()).capitalize()} {c(unit)}.",
    lambda: f"Chapter {num(R.randint(1, 60))}, page {big(R.randint(1, 900))}.",
    lambda: (
        f"{person()}, {person()}, and {person()} {c(['arrived late', 'won the prize', 'wrote the report', 'live in ' + c(cities), 'are on the list'])}."
    ),
    lambda: f"The ticket costs {num(R.randint(2, 99))} dollars, but {c(firsts)} paid {num(R.randint(2, 99))}.",
    lambda: f"It was {big(R.randint(1, 120))} degrees in {c(cities)} on {day_words()}.",
    lambda: (
        f"She finished {c(ORD)} in the race, in {num(R.randint(1, 59))} minutes and {num(R.randint(1, 59))} seconds."
    ),
    lambda: (
        f"The {c(ORD)} {c(['chapter', 'floor', 'street', 'president', 'symphony', 'attempt', 'edition', 'row'])} is the {c(['best', 'longest', 'oldest', 'worst'])}."
    ),
    lambda: (
        f"Between {year_words(anyyear())} and {year_words(anyyear())}, the town grew by {num(R.randint(2, 99))} percent."
    ),
    lambda: f"Dear {c(firsts)}, thank you for your letter of {day_words()}.",
    lambda: (
        f"{c(firsts)} lives at {big(R.randint(1, 999))} {c(surnames)} {c(['Street', 'Avenue', 'Road', 'Lane'])} in {c(cities)}."
    ),
    lambda: f"My number is {' '.join(num(R.randint(0, 9)) for _ in range(R.randint(3, 7)))}.",
    lambda: f"The letters are {', '.join(R.choice('ABCDEFGHIJKLMNOPQRSTUVWXYZ') for _ in range(R.randint(2, 6)))}.",
    lambda: f"Have you ever been to {c(cities)}, {c(firsts)}?",
    lambda: f"Did {person()} really say that in {year_words(anyyear())}?",
    lambda: f"I bought {c(foods)}, {c(foods)}, {c(foods)}, and {c(foods)} for {num(R.randint(2, 99))} dollars.",
    lambda: f"One {c(W8)}, two {c(W8)}s, and three {c(W8)}s.",
    # as digits and signs
    lambda: f"{anyint():,}.",
    lambda: f"{anyint()}.",
    lambda: f"{person()} was born on {c(months)} {R.randint(1, 31)}, {anyyear()}.",
    lambda: f"It costs ${R.randint(1, 999)}.{R.randint(10, 99)}.",
    lambda: f"It costs ${R.randint(1, 5000):,}.",
    lambda: f"About {R.randint(1, 99)}% of {c(unit)}.",
    lambda: f"In {anyyear()}, {c(orgs)} had {anyint():,} {c(['people', 'students', 'workers'])}.",
    lambda: (
        f"The train to {c(cities)} leaves at {R.randint(1, 12)}:{R.randint(0, 59):02d} {c(['a.m.', 'p.m.', 'AM', 'PM'])}."
    ),
    lambda: f"{c(['Mr.', 'Mrs.', 'Dr.', 'Prof.', 'Ms.'])} {c(surnames)} lives in {c(cities)}.",
    lambda: f"It is {R.randint(1, 99)}.{R.randint(1, 99)} {c(unit)} long.",
    lambda: f"Room {R.randint(1, 999)}, {c(['floor', 'gate', 'platform'])} {R.randint(1, 40)}.",
    lambda: f"Call {R.randint(100, 999)}-{R.randint(1000, 9999)}.",
    lambda: f"{R.randint(1, 99)} + {R.randint(1, 99)}.",
    lambda: (
        f"Meet me on {c(months)} {c(['1st', '2nd', '3rd', '4th', '5th', '11th', '12th', '13th', '21st', '22nd', '23rd', '30th', '31st'])}."
    ),
]
chat = [l.strip() for l in open(f"{HERE}/chat_lines.txt") if l.strip()]

# ---------------------------------------------------------------- assistant tasks
exec(open(f"{HERE}/tasks.py").read())  # defines TASKS: list of (q, a, weight), FALLBACK

hard_set = {bare(h) for h in hard}
tpl = list(dict.fromkeys(f() for _ in range(34000) for f in [c(TPL)])) + list(
    dict.fromkeys(f() for _ in range(40000) for f in [c(MORE)])
)
single = [w.capitalize() + "." for w in W8[:6000]]
# every word of WordNet at least once, names too
lemmas = []
for p in ("noun", "verb", "adj", "adv"):
    for l in open(f"{WN}/index.{p}"):
        if not l.startswith("  "):
            lemmas.append(l.split()[0])
proper = {}
for l in open(f"{WN}/data.noun"):
    if not l.startswith("  "):
        f = l.split()
        n = int(f[3], 16)
        for k in range(n):
            w = f[4 + 2 * k]
            if w[0].isupper():
                proper[w.lower()] = w
lem = [proper.get(w, w).replace("_", " ") for w in dict.fromkeys(lemmas)]
lem = [
    w
    for w in lem
    if re.fullmatch(r"[A-Za-z][A-Za-z' -]{1,28}", w)
    and not BAD.search(w)
    and not re.search(r"[A-Z]{2}", w)
    and len(w.split()) <= 3
]
R.shuffle(lem)
lists, i = [], 0
while i < len(lem):
    k = R.randint(1, 5)
    g = lem[i : i + k]
    i += k
    lists.append(
        R.choice(
            [
                lambda: ", ".join(g[:-1]) + (" and " if len(g) == 2 else ", and " if len(g) > 1 else "") + g[-1] + ".",
                lambda: "; ".join(g) + ".",
                lambda: f"The {g[0]}" + "".join(f" and the {x}" for x in g[1:]) + ".",
                lambda: f"I read about {', '.join(g)}, in that order.",
                lambda: f"What is {' or '.join(g)}?",
            ]
        )()
    )
    lists[-1] = lists[-1][0].upper() + lists[-1][1:]
questions = [
    f"{R.choice(['What is', 'Who knows about', 'Tell me about', 'Why do we need', 'Have you heard of', 'Where can I find'])} {R.choice(lem)}?"
    for _ in range(6000)
]
answers = [a for _, a, _ in TASKS] + FALLBACK
examples = [finish(s) for s in ex]
first = examples + [finish(s) for s in gl[:70000]] + tpl + single + lists + questions
R.shuffle(first)
out = {bare(x) for x in held + hard}
ok = lambda t: 1 <= len(t) <= 150 and bare(t) not in out
texts = [t for t in dict.fromkeys(chat + list(dict.fromkeys(answers)) + first) if ok(t)]
keep, rnd = [], []
ans = set(chat) | set(answers)
for t in texts:
    (
        rnd
        if len(rnd) < 500
        and t not in ans
        and 3 <= len(t.split()) <= 18
        and not re.search(r"[\d$%+]", t)
        and R.random() < 0.02
        else keep
    ).append(t)
texts = keep[: A.limit]
rs = {bare(t) for t in rnd}
texts = [t for t in texts if bare(t) not in rs]
# ---------------------------------------------------------------- rare words and names in plain sentences
# With a generator of their own, so that everything before stays what it was.
Q = random.Random(11)
q = Q.choice
RARE = 52000  # sentences; what is left of the glosses comes on top
irregular = {}
for p in ("noun", "verb"):
    for l in open(f"{WN}/{p}.exc"):
        form, base = l.split()[:2]
        irregular.setdefault((p, base), []).append(form)


def plural(w):
    forms = irregular.get(("noun", w))
    if forms:
        return forms[0]
    if re.search(r"[^aeiou]y$", w):
        return w[:-1] + "ies"
    return w + ("es" if re.search(r"(s|x|z|ch|sh)$", w) else "s")


def stem(w, end):
    """A verb before -ed or -ing."""
    if w.endswith("e") and not re.search(r"(ee|oe|ye)$", w):
        return w[:-1]
    if re.search(r"^[^aeiou]*[aeiou][bdgklmnprt]$", w):  # of one syllable
        return w + w[-1]
    return w[:-1] + "i" if end == "ed" and re.search(r"[^aeiou]y$", w) else w


def ing(w):
    return next((f for f in irregular.get(("verb", w), []) if f.endswith("ing")), stem(w, "ing") + "ing")


def past(w):
    return next((f for f in irregular.get(("verb", w), []) if not f.endswith(("ing", "s"))), stem(w, "ed") + "ed")


known = set(W8)
seldom = {}
for p in ("noun", "verb", "adj", "adv"):
    some = [l.split()[0] for l in open(f"{WN}/index.{p}") if not l.startswith("  ")]
    seldom[p] = [
        w
        for w in some
        if re.fullmatch(r"[a-z]{3,16}", w)
        and not (w in known or w in proper or BAD.search(w) or re.fullmatch("[ivxlcdm]+", w))
    ]
persons, towns, waters = [], [], []
for l in open(f"{WN}/data.noun"):
    f = l.split()
    if l.startswith("  ") or "@i" not in f or f[1] not in ("15", "17", "18"):
        continue
    for w in (f[4 + 2 * k].replace("_", " ") for k in range(int(f[3], 16))):
        if (
            re.fullmatch(r"[A-Z][A-Za-z' -]{2,28}", w)
            and not re.search(r"[A-Z]{2}| of | the ", w)
            and not BAD.search(w)
        ):
            {"18": persons, "15": towns, "17": waters}[f[1]].append(w)
persons = [w for w in dict.fromkeys(persons) if not re.match(r"(Saint|St|Sir|Lord|Pope|King|Queen|The) ", w)]
towns, waters = ([w for w in dict.fromkeys(x) if len(w.split()) < 4] for x in (towns, waters))
family = list(dict.fromkeys(w.split()[-1] for w in persons))
given = list(dict.fromkeys(w.split()[0] for w in persons if len(w.split()) > 1)) + firsts


class Turn:
    """Words one after the other, each as often as the others."""

    def __init__(self, some):
        self.all, self.left = list(dict.fromkeys(some)), []

    def __call__(self):
        if not self.left:
            self.left = Q.sample(self.all, len(self.all))
        return self.left.pop()


noun, verb, adj, adv = (Turn(seldom[p]) for p in ("noun", "verb", "adj", "adv"))
who, town, water, last, given1 = Turn(persons), Turn(towns), Turn(waters), Turn(family), Turn(given)
an = lambda w: ("an " if w[0] in "aeiou" else "a ") + w
one, they, place = lambda: q(names), lambda: q(["They", "We", "The others", "My friends"]), lambda: q(places)
when = lambda: q(
    ["yesterday", "last night", "this morning", "every day", "in the end", "on Sunday", "years ago", "again"]
)
thing = lambda: q(things)
of = lambda w: w + ("'" if w.endswith("s") else "'s")
OF_NOUNS = [
    lambda: f"Nobody had noticed the {noun()} before.",
    lambda: f"She showed me the {noun()} near {place()}.",
    lambda: f"The {noun()} was older than the {noun()}.",
    lambda: f"We talked about the {noun()} for an hour.",
    lambda: f"He bought {an(noun())} for {one()}.",
    lambda: f"There is {an(noun())} in this picture.",
    lambda: f"All of the {plural(noun())} were gone by {q(days)}.",
    lambda: f"{one()} wrote a short book about {plural(noun())}.",
    lambda: f"They sell {plural(noun())} and {plural(noun())} at {place()}.",
    lambda: f"Some {plural(noun())} are {q(adjs)}, others are {q(adjs)}.",
    lambda: f"I have never seen so many {plural(noun())}.",
    lambda: f"The old man told us a story of {an(noun())} and {an(noun())}.",
    lambda: f"Without the {noun()}, nothing works.",
    lambda: f"What happened to the {plural(noun())} that {one()} found?",
    lambda: f"The {of(noun())} color reminded her of {an(noun())}.",
    lambda: f"He is more interested in {noun()} than in {noun()}.",
    lambda: f"It was the first {noun()} of the year.",
    lambda: f"The teacher explained what {noun()} means.",
    lambda: f"Two {plural(noun())} lay on the {thing()}.",
    lambda: f"Is that really {an(noun())}?",
    lambda: f"{one()} keeps the {plural(noun())} in the {q(adjs)} {thing()}.",
    lambda: f"The {noun()} near {place()} belongs to {one()}.",
]
OF_VERBS = [
    lambda: f"{they()} {past(verb())} it {when()}.",
    lambda: f"He {past(verb())} and {past(verb())} until it was dark.",
    lambda: f"She was {ing(verb())} when {one()} came home.",
    lambda: f"They are {ing(verb())} the {noun()} now.",
    lambda: f"You should not {verb()} the {thing()}.",
    lambda: f"Nobody wants to {verb()} or to {verb()}.",
    lambda: f"The {noun()} {plural(verb())} when it is cold.",
    lambda: f"{one()} often {plural(verb())} on {q(days)}.",
    lambda: f"After {ing(verb())} for a while, he went home.",
    lambda: f"The {thing()} has been {past(verb())} by somebody.",
    lambda: f"Why did they {verb()} the {noun()}?",
    lambda: f"{ing(verb()).capitalize()} is harder than {ing(verb())}.",
    lambda: f"I heard them {ing(verb())} in {place()}.",
    lambda: f"It must be {past(verb())} before it can be {past(verb())}.",
]
OF_ADJECTIVES = [
    lambda: f"It was {an(adj())} and {adj()} evening.",
    lambda: f"The {thing()} looked rather {adj()}.",
    lambda: f"His answer was {adj()}, but hers was {adj()}.",
    lambda: f"I have never met such {an(adj())} person.",
    lambda: f"An old and {adj()} {noun()} stood near the door.",
    lambda: f"{one()} felt strangely {adj()} {when()}.",
    lambda: f"That is {an(adj())} idea, {one()}.",
    lambda: f"The {adj()} {noun()} belongs to my sister.",
    lambda: f"Her {adj()} voice filled the room.",
    lambda: f"Do you think that the {adj()} one is better?",
    lambda: f"The land here is {adj()}, and the people are {adj()}.",
    lambda: f"He spoke in {an(adj())} way about {adj()} {plural(noun())}.",
]
OF_ADVERBS = [
    lambda: f"She smiled {adv()} and left.",
    lambda: f"{one()} {adv()} closed the {thing()}.",
    lambda: f"They worked {adv()} but not {adv()}.",
    lambda: f"The {noun()} moved {adv()} through the water.",
    lambda: f"He {adv()} {past(verb())} the letter.",
    lambda: f"It was {adv()} {adj()}.",
]
OF_NAMES = [
    lambda: f"{who()} was born near {town()}.",
    lambda: f"{given1()} {last()} moved to {town()} {when()}.",
    lambda: f"The road from {town()} to {town()} is closed.",
    lambda: f"Have you read anything by {who()}?",
    lambda: f"My neighbor {given1()} comes from {town()}.",
    lambda: f"{of(last())} house stands on the way to {town()}.",
    lambda: f"Mister {last()} and Doctor {last()} met at {place()}.",
    lambda: f"We saw {water()} from the train.",
    lambda: f"{given1()} and {given1()} are waiting for {last()}.",
    lambda: f"She lived in {town()} until {q(months)}.",
    lambda: f"Please ask {given1()} {last()} about the {noun()}.",
    lambda: f"It rained in {town()}, but not in {town()}.",
    lambda: f"{who()} and {who()} never met.",
    lambda: f"Good morning, {q(['Mister', 'Missus', 'Doctor', 'Professor', 'Captain'])} {last()}.",
    lambda: f"Is {town()} larger than {town()}?",
    lambda: f"{of(given1())} brother works for {last()} in {town()}.",
]
rare = {}
while len(rare) < min(RARE, (A.limit or RARE * 4) // 4):
    (some,) = Q.choices((OF_NOUNS, OF_VERBS, OF_ADJECTIVES, OF_ADVERBS, OF_NAMES), (46, 14, 20, 6, 14))
    s = q(some)()
    rare[s[0].upper() + s[1:]] = None
rest = [s[0].upper() + s[1:] + ("" if s[-1] in ".!?" else ".") for s in gl[70000:]][: A.limit]
rare = list(rare) + rest
Q.shuffle(rare)
away = out | rs | {bare(t) for t in texts}
rare = [t for t in rare if len(t) <= 150 and bare(t) not in away]
# what a listener would type comes first, so that the teacher says it first; lists of rare words last
kind = {t: "g" for t in first}
kind.update({t: "l" for t in lists + questions})
kind.update({t: "t" for t in tpl + single})
kind.update({t: "e" for t in examples})
kind.update({t: "a" for t in ans})
kind.update({t: "r" for t in rare})
texts = [t for k in ("a", "et", "g", "r", "l") for t in texts + rare if kind[t] in k]
open(f"{OUT}/hard.txt", "w").write("\n".join(hard) + "\n")
open(f"{OUT}/random.txt", "w").write("\n".join(rnd) + "\n")
open(f"{OUT}/texts.txt", "w").write("\n".join(texts) + "\n")
open(f"{OUT}/kinds.txt", "w").write("".join(kind[t] for t in texts))
open(f"{OUT}/heldout.txt", "w").write("\n".join(held) + "\n")
with open(f"{OUT}/tasks.jsonl", "w") as f:
    for q, a, w in TASKS:
        f.write(json.dumps({"q": q, "a": a, "w": w}) + "\n")
json.dump({"words": W8, "fallback": FALLBACK}, open(f"{OUT}/extra.json", "w"))

# ---------------------------------------------------------------- tokenizer (byte-level BPE, Qwen pre-tokenizer, Qwen special tokens)
if A.tokenizer:
    from tokenizers import Tokenizer

    for f in ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "chat_template.json"):
        shutil.copy(f"{A.tokenizer}/{f}", OUT)
    tok = Tokenizer.from_file(f"{OUT}/tokenizer.json")
else:
    sys.path.insert(0, HERE)
    import bpe

    corpus = (
        texts[:120000]
        + [q for q, _, _ in TASKS]
        + ["system user assistant"] * 50
        + ["system\nuser\nassistant\n"] * 5000
        + ["Say: Repeat after me: Please say: Read this aloud:"] * 300
    )
    tok, _ = bpe.build_tokenizer(OUT, corpus, base_vocab=1000)
n = sum(len(e.ids) for e in tok.encode_batch(texts[:5000]))
ch = sum(map(len, texts[:5000]))
print(
    f"{len(texts)} texts, {sum(map(len, texts)) / 1e6:.1f} M characters, {len(TASKS)} questions, {len(held)} + {len(hard)} + {len(rnd)} kept out, {ch / n:.2f} characters a token"
)
