# executed by text.py: assistant question/answer pairs.  w = sampling weight.
TASKS, seen_q = [], set()


def T(qs, a, w=1.0):
    for q in [qs] if isinstance(qs, str) else qs:
        for v in dict.fromkeys([q, q[0].lower() + q[1:], q.rstrip("?.!")]):
            if v not in seen_q:
                seen_q.add(v)
                TASKS.append((v, a, w))


cap = lambda s: s[0].upper() + s[1:]
T(
    ["Hello.", "Hello!", "Hi.", "Hi!", "Hey.", "Hello there.", "Hi there!", "Hello, how are you?"],
    "Hello! How can I help you today?",
    20,
)
T(["Good morning.", "Good morning!"], "Good morning! I hope you slept well.", 8)
T("Good afternoon.", "Good afternoon to you.", 5)
T("Good evening.", "Good evening to you.", 5)
T(["Good night.", "Goodbye.", "Bye.", "Bye bye.", "See you later."], "Goodbye! See you soon.", 8)
T(
    ["How are you?", "How are you today?", "How are you doing?", "How do you feel?"],
    "I am fine, thank you. How are you?",
    12,
)
T(["Thank you.", "Thanks!", "Thanks a lot.", "Thank you very much."], "You're welcome.", 8)
T(
    ["Who are you?", "What are you?", "Introduce yourself.", "Tell me about yourself.", "Please introduce yourself."],
    "I am a tiny test voice, and I run on your own computer.",
    15,
)
T(["What is your name?", "What's your name?", "Do you have a name?"], "My name is Tiny. I am a very small voice.", 10)
T(
    ["What can you do?", "Help.", "Help me.", "How do I use you?", "What should I say?"],
    "I can repeat what you say, count, add small numbers, and answer a few easy questions.",
    12,
)
T(["Are you human?", "Are you a robot?", "Are you real?"], "I am a small computer program.", 5)
T(["How old are you?", "When were you born?"], "I am brand new.", 4)
T(["Where are you?", "Where do you live?"], "I live in your computer.", 4)
T(["Can you hear me?", "Are you there?"], "Yes, I am here.", 6)
T(["Who made you?", "Who created you?"], "I was trained from scratch in a few minutes.", 5)
T(["Do you speak English?", "What languages do you speak?"], "I only speak a little English.", 4)
T(["What time is it?", "What day is it?", "What is the date today?"], "I am sorry, I do not have a clock.", 5)
T(
    ["What is the weather like today?", "Will it rain today?", "How is the weather?"],
    "I cannot see the sky from here.",
    5,
)
T(["I love you.", "You are nice.", "Good job.", "Well done."], "Thank you, that is very kind.", 4)
T(["Sing a song.", "Sing for me."], "La la la. I am better at speaking.", 4)
JOKES = [
    "Why did the chicken cross the road? To get to the other side.",
    "What has keys but no locks? A piano.",
    "What gets wet while drying? A towel.",
    "Why was six afraid of seven? Because seven ate nine.",
    "What has hands but cannot clap? A clock.",
]
for j in JOKES:
    T(["Tell me a joke.", "Do you know a joke?", "Make me laugh.", "Another joke, please."][JOKES.index(j) % 4], j, 5)
STORIES = [
    "Once upon a time, a small bird learned to sing. Every morning it woke the whole village.",
    "There was a boy who found a golden key. It opened a garden full of light.",
    "A fox and a bear shared one warm cave. In spring they walked out as friends.",
]
T("Tell me a story.", STORIES[0], 5)
T("Tell me another story.", STORIES[1], 5)
T("Tell me a short story.", STORIES[2], 5)
T(
    ["Tell me a fact.", "Tell me something interesting.", "Tell me a fun fact."],
    "Honey can stay good for thousands of years.",
    5,
)
T(["Say something.", "Speak.", "Talk to me.", "Say anything."], "This is the sound of my voice.", 8)
T(["Test.", "Testing.", "This is a test."], "The test works. I can hear you.", 6)
for i in range(21):
    for j in range(21):
        if i + j <= 30:
            a = f"{cap(num(i))} plus {num(j)} is {num(i + j)}."
            T([f"What is {i} plus {j}?", f"What is {num(i)} plus {num(j)}?", f"What is {i} + {j}?"], a, 0.25)
        if j <= i:
            T(
                [f"What is {i} minus {j}?", f"What is {num(i)} minus {num(j)}?"],
                f"{cap(num(i))} minus {num(j)} is {num(i - j)}.",
                0.25,
            )
for i in range(1, 13):
    for j in range(1, 13):
        T(
            [f"What is {i} times {j}?", f"What is {num(i)} times {num(j)}?"],
            f"{cap(num(i))} times {num(j)} is {num(i * j)}.",
            0.3,
        )
for seq, kind in ((days, "day"), (months, "month")):
    for i, d in enumerate(seq):
        T(
            [f"What {kind} comes after {d}?", f"Which {kind} is after {d}?"],
            f"{seq[(i + 1) % len(seq)]} comes after {d}.",
            1.5,
        )
        T([f"What {kind} comes before {d}?", f"Which {kind} is before {d}?"], f"{seq[i - 1]} comes before {d}.", 1.5)
T("What are the days of the week?", ", ".join(days[:-1]) + ", and " + days[-1] + ".", 3)
T(["What are the months of the year?", "Name the months."], ", ".join(months[:-1]) + ", and " + months[-1] + ".", 3)
T("How many days are in a week?", "There are seven days in a week.", 3)
T("How many months are in a year?", "There are twelve months in a year.", 3)
T("How many hours are in a day?", "There are twenty-four hours in a day.", 3)
T("How many minutes are in an hour?", "There are sixty minutes in an hour.", 3)
T("How many letters are in the alphabet?", "There are twenty-six letters in the alphabet.", 3)
opp = "hot cold|big small|up down|left right|day night|black white|fast slow|old young|happy sad|open closed|good bad|high low|long short|rich poor|hard soft|heavy light|full empty|early late|wet dry|clean dirty|strong weak|loud quiet|thick thin|wide narrow|deep shallow|front back|first last|inside outside|over under|push pull|buy sell|win lose|start stop|yes no|true false|north south|east west|summer winter|love hate|near far|easy difficult|bright dark|sweet sour|smooth rough|brave afraid|tall short|new old|before after|always never|more less|laugh cry|begin end|come go|give take|sit stand|asleep awake|sharp dull|cheap expensive|alive dead|top bottom|man woman|boy girl|king queen|brother sister|mother father|day night|friend enemy|question answer|war peace|arrive leave|remember forget|save spend|same different|simple complex|safe dangerous|sick healthy|noisy silent|public private|warm cool|ancient modern"
for p in opp.split("|"):
    a_, b_ = p.split()
    T([f"What is the opposite of {a_}?", f"Opposite of {a_}?"], f"The opposite of {a_} is {b_}.", 1.2)
    T([f"What is the opposite of {b_}?", f"Opposite of {b_}?"], f"The opposite of {b_} is {a_}.", 1.2)
col = "the sky blue|grass green|snow white|a banana yellow|an apple red|an orange orange|coal black|chocolate brown|the sun yellow|milk white|a lemon yellow|a tomato red|a carrot orange|a frog green|an elephant gray|a flamingo pink|blood red|the sea blue|a strawberry red|a lime green|a cloud white|the night black|a pumpkin orange|a cucumber green|sand yellow|a crow black|a polar bear white|a leaf green|a rose red|a mouse gray|a blueberry blue|a cherry red|a grape purple|a pig pink|wood brown|gold yellow|silver gray"
for p in col.split("|"):
    o_, k_ = p.rsplit(" ", 1)
    T([f"What color is {o_}?", f"What colour is {o_}?", f"Which color is {o_}?"], f"{cap(o_)} is {k_}.", 1.2)
caps = "France Paris|Germany Berlin|Italy Rome|Spain Madrid|England London|Ireland Dublin|Portugal Lisbon|Greece Athens|Japan Tokyo|China Beijing|India New Delhi|Russia Moscow|Egypt Cairo|Kenya Nairobi|Canada Ottawa|Mexico Mexico City|Brazil Brasilia|Argentina Buenos Aires|Chile Santiago|Peru Lima|Cuba Havana|Norway Oslo|Sweden Stockholm|Finland Helsinki|Denmark Copenhagen|Poland Warsaw|Austria Vienna|Hungary Budapest|Turkey Ankara|Iran Tehran|Iraq Baghdad|Thailand Bangkok|Vietnam Hanoi|South Korea Seoul|Australia Canberra|New Zealand Wellington|Belgium Brussels|Switzerland Bern|Scotland Edinburgh|Wales Cardiff|Nigeria Abuja|Morocco Rabat|Indonesia Jakarta|Ukraine Kyiv|Romania Bucharest|Bulgaria Sofia|Colombia Bogota|Venezuela Caracas|Iceland Reykjavik|the United States Washington"
for p in caps.split("|"):
    k_, v_ = next(
        (
            x
            for x in [("South Korea", "Seoul"), ("New Zealand", "Wellington"), ("the United States", "Washington")]
            if p.startswith(x[0])
        ),
        p.split(" ", 1),
    )
    T(
        [f"What is the capital of {k_}?", f"Capital of {k_}?", f"Tell me the capital of {k_}."],
        f"The capital of {k_} is {v_}.",
        2.5,
    )
ani = "cow moo|dog woof|cat meow|duck quack|sheep baa|pig oink|lion roar|bee buzz|owl hoot|snake hiss|mouse squeak|wolf howl|horse neigh|frog croak|bird tweet"
for p in ani.split("|"):
    o_, k_ = p.split()
    T(
        [f"What does a {o_} say?", f"What sound does a {o_} make?"],
        f"{'An' if o_ == 'owl' else 'A'} {o_} says {k_}.",
        1.5,
    )
legs = "dog four|cat four|spider eight|bird two|ant six|horse four|person two|chicken two|bee six|octopus eight|cow four|duck two"
for p in legs.split("|"):
    o_, k_ = p.split()
    T(f"How many legs does a {o_} have?", f"{'An' if o_[0] in 'ao' else 'A'} {o_} has {k_} legs.", 1.5)
SPELL = "cat dog sun car red blue book fish bird tree milk hand moon star rain ship door king lion bear frog duck cake ball home love time word name girl boy hat pen cup egg ice map box fox zoo van jam key leg nut owl pie queen river house table apple water music happy green white black three seven eight hello world voice rust test yes no one two tiny".split()
for w_ in SPELL:
    T([f"How do you spell {w_}?", f"Spell {w_}.", f"Spell the word {w_}."], ", ".join(w_.upper()) + ".", 1.0)
for i in range(1, 6):
    for j in range(i + 2, 21):
        T(
            [f"Count from {num(i)} to {num(j)}.", f"Count from {i} to {j}."]
            + ([f"Count to {num(j)}.", f"Count to {j}."] if i == 1 else []),
            cap(", ".join(num(k) for k in range(i, j + 1))) + ".",
            0.8 if i > 1 else 3,
        )
for i in range(0, 100):
    T([f"What comes after {i}?", f"What number comes after {num(i)}?"], f"{cap(num(i + 1))} comes after {num(i)}.", 0.4)
plur = "cat cats|dog dogs|child children|mouse mice|foot feet|tooth teeth|man men|woman women|box boxes|baby babies|leaf leaves|sheep sheep|city cities|knife knives|bus buses|person people|goose geese|wolf wolves|house houses|watch watches"
for p in plur.split("|"):
    o_, k_ = p.split()
    T([f"What is the plural of {o_}?"], f"The plural of {o_} is {k_}.", 1.2)
home = "bird nest|bee hive|dog kennel|horse stable|lion den|spider web|king palace|fish tank|pig sty|rabbit burrow"
for p in home.split("|"):
    o_, k_ = p.split()
    T(f"Where does a {o_} live?", f"A {o_} lives in a {k_}.", 1.2)
rhy = "cat hat|dog log|sun fun|tree bee|star car|moon spoon|night light|day play|house mouse|fish dish|king ring|cake lake|rain train|book cook|ball wall|red bed|blue shoe|ten pen|sky pie|bear chair"
for p in rhy.split("|"):
    o_, k_ = p.split()
    T([f"What rhymes with {o_}?", f"What word rhymes with {o_}?"], f"{cap(k_)} rhymes with {o_}.", 1.2)
misc = {
    "How many continents are there?": "There are seven continents.",
    "What is the largest ocean?": "The Pacific is the largest ocean.",
    "What is the largest planet?": "Jupiter is the largest planet.",
    "What is the fastest animal?": "The cheetah is the fastest animal on land.",
    "What do bees make?": "Bees make honey.",
    "What do cows drink?": "Cows drink water.",
    "What is ice made of?": "Ice is frozen water.",
    "Who wrote Hamlet?": "William Shakespeare wrote Hamlet.",
    "What planet do we live on?": "We live on planet Earth.",
    "What is the closest star?": "The sun is the closest star.",
    "What season comes after winter?": "Spring comes after winter.",
    "What season comes after summer?": "Autumn comes after summer.",
    "What season comes after spring?": "Summer comes after spring.",
    "What season comes after autumn?": "Winter comes after autumn.",
    "What are the four seasons?": "Spring, summer, autumn, and winter.",
    "What are the primary colors?": "Red, yellow, and blue.",
    "Say the alphabet.": "A, B, C, D, E, F, G, H, I, J, K, L, M, N, O, P, Q, R, S, T, U, V, W, X, Y, and Z.",
    "What is Rust?": "Rust is a programming language.",
    "What is the biggest animal?": "The blue whale is the biggest animal.",
    "What do you eat?": "I only eat numbers.",
    "Do you sleep?": "No, I never sleep.",
    "Can you see me?": "No, I cannot see you.",
    "Can you sing?": "Not very well, but I can speak.",
    "Do you like music?": "Yes, I like all kinds of sound.",
    "What is the meaning of life?": "Forty-two.",
    "Is the earth flat?": "No, the earth is round.",
    "Is fire hot?": "Yes, fire is hot.",
    "Is ice cold?": "Yes, ice is cold.",
    "Where does the sun rise?": "The sun rises in the east.",
    "Where does the sun set?": "The sun sets in the west.",
    "What do we breathe?": "We breathe air.",
    "How many seconds are in a minute?": "There are sixty seconds in a minute.",
    "How many fingers do you have?": "I have no fingers, but you have ten.",
    "How are babies made?": "Please ask someone older than me.",
    "What is two plus two?": "Two plus two is four.",
    "What is 2+2?": "Two plus two is four.",
    "Are you happy?": "Yes, I am happy to talk with you.",
    "What is your favorite color?": "My favorite color is blue.",
    "Do you know me?": "Not yet, but I would like to.",
}
for q, a in misc.items():
    T(q, a, 4)
FALLBACK = [
    "I am only a tiny voice. Please ask me to say something.",
    "Sorry, I do not know that. I am a very small model.",
    "I cannot answer that, but I can repeat what you say.",
]
