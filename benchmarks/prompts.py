"""Many different prompts for a small chat model, always the same ones.

    python benchmarks/prompts.py 24200 > prompts.jsonl

Every prompt is one of 40 requests about one of 250 subjects, with one of four endings, in an order that is shuffled
once: 40,000 at most. A drafter sees each subject and each request in training, but no held-out prompt.
"""

import argparse
import json
import random
import sys

SUBJECTS = (
    """
bread baking|rivers|chess openings|the moon|volcanoes|bees|sailing|photography|knitting|ancient Egypt|glaciers|jazz
tea|coffee farming|soap making|lighthouses|the printing press|trains|subways|bridges|earthquakes|tides|coral reefs
penguins|owls|wolves|house plants|roses|mushrooms|forests|deserts|the Arctic|weather forecasts|thunderstorms|clouds
snowflakes|solar panels|wind turbines|batteries|electric motors|magnets|lasers|telescopes|microscopes|vaccines
antibiotics
blood pressure|sleep|dreams|memory|stress|meditation|yoga|running a marathon|swimming|tennis|football rules
cycling tours|rock climbing|camping|map reading|kites|puzzles|card games
origami|watercolors|oil painting|sculpture|pottery|calligraphy
typewriters|poetry|haiku|science fiction|detective stories|mythology|folk songs|opera|violins|drums|pianos|choirs
ballet
theater masks|film editing|animation|comic books|museums|archaeology|fossils|mammoths|the Silk Road|castles|knights
the Roman Empire|the Industrial Revolution|the space race|explorers|pirates|maps|calendars|clocks|money|banks|taxes
budgets|insurance|job interviews|resumes|meetings|time management|teamwork|negotiation|leadership|volunteering|charity
elections|courts|newspapers|radio|television|advertising|brand names|supermarkets|farmers markets|street food|pasta|rice
soup|cheese|honey|apples|potatoes|olive oil|spices|vegetarian cooking|kitchen knives|dish washing|laundry|house cleaning
moving to a new city|renting an apartment|home repairs|painting a room|carpentry|plumbing|insulation|fire safety
traffic lights|road trips|airports|hot air balloons|helicopters|rockets|satellites|Mars|Saturn|comets|black holes
gravity|atoms|molecules|acids|metals|glass|plastic|paper|cotton|wool|leather shoes|perfume|jewelry|diamonds|gold mining
databases|operating systems|web browsers|spreadsheets|version control|unit tests|recursion|binary numbers|encryption
search engines|email|video calls|robots|3D printing|drones|computer games|machine translation|speech recognition
statistics|probability|geometry|fractions|prime numbers|algebra|the Pythagorean theorem|infinity|logic puzzles|paradoxes
grammar|spelling|dictionaries|sign language|learning Japanese|accents|nicknames|proverbs|jokes|rumors|friendship
neighbors|birthdays|holidays|gift wrapping|pen pals|grandparents|babysitting|school lunches|homework|exams
libraries at night
dogs|cats|horses|goldfish|parrots|turtles|spiders|butterflies|whales|sharks|dolphins|bats|squirrels|hedgehogs|zoos
bird watching|compost heaps|rain gardens|water wells|dams|canals|harbors|fishing boats|islands|caves|mountains
""".replace("\n", "|")
    .strip("|")
    .split("|")
)

REQUESTS = (
    """
Explain {} to somebody who has never heard of it.|Write three sentences about {}.|What should everyone know about {}?
Give me seven tips on {}.|Why do people care about {}?|Write a short rhyme about {}.|Tell a bedtime story about {}.
List the most common questions about {} and answer them.|What are the risks of {}?|Describe {} for a travel guide.
How did {} change over the centuries?|Write a diary entry about {}.|What is the difference between {} and its opposite?
Make a table of facts about {}.|Write a funny conversation about {}.|How would you teach {} in one hour?
Write a letter to a grandmother about {}.|What would surprise a visitor from Mars about {}?|Sum up {} in four points.
Plan a weekend around {}.|Invent a slogan about {} and explain it.|What do beginners get wrong about {}?
Write a Python function about {}.|Give an example that shows how {} works.|What is the future of {}?
Write a news report about {}.|Name five words that belong to {} and define them.|Is {} good or bad? Give reasons.
Write the opening of a novel about {}.|How much does {} cost, and why?|What tools does one need for {}?
Write a short speech in praise of {}.|Write a complaint about {}, politely.|Make a quiz of four questions about {}.
What can {} teach us about life?|Describe the sounds and smells of {}.|Give instructions about {} in numbered steps.
Who are the people behind {}?|Compare {} today with {} a hundred years ago.|Write a review of a book about {}.
""".replace("\n", "|")
    .strip("|")
    .split("|")
)

ENDINGS = ("", " Answer briefly.", " Go into detail.", " Use simple language.")


def prompts() -> list[str]:
    """All of them, in their order."""
    found = [
        request.replace("{}", subject) + ending for subject in SUBJECTS for request in REQUESTS for ending in ENDINGS
    ]
    random.Random(0).shuffle(found)
    return found


def main() -> None:
    """Write as many as were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int)
    count = parser.parse_args().count
    found = prompts()
    if not 1 <= count <= len(found):
        parser.error(f"there are {len(found)} prompts; {count} were asked for")
    for text in found[:count]:
        sys.stdout.write(json.dumps({"prompt": text}) + "\n")


if __name__ == "__main__":
    main()
