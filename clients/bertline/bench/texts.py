"""Default texts of `bertline bench`."""

_TEXTS = """
opening hours

how do I reset my password

Thanks, that works.

cheap flights to Lisbon in May

The owl sits in the old oak.

Could you send the invoice again, please?

The parcel arrived two days late and one corner was crushed.

Nobody had told the new tenants that the lift stops at the fourth floor.

She sold the bakery in Porto, bought a small boat, and was not seen again before spring.

Unlike its predecessor, the second edition lists every station of the line, with the year in which it was opened.

The committee will meet on Thursday at nine; whoever cannot attend should send a deputy, or at least their vote in
writing.

After a week of rain the river had risen so far that the lower road was closed, and the mail went round by the hills.

The battery lasts a full day of ordinary use. With the screen at its brightest and navigation running it was empty
after five hours, which is still an hour more than the model of last year managed under the same conditions.

In 1871 the workshop moved from the harbour to a site beside the new railway. It employed some forty people, most of
them from the surrounding villages, and made pumps for mines, later also steam engines for mills. A fire destroyed the
foundry in 1889; it was rebuilt within a year.

To change the filter, switch the machine off and let it cool for ten minutes. Open the flap at the back, press the two
grey clips together and pull the cartridge straight towards you. Rinse the seat with warm water, without soap. Insert
the new cartridge with the arrow pointing up until both clips snap in. Close the flap, switch the machine on and let
two cups of water run through before you use it again.

The report covers three regions over ten years. In the north, yields rose slowly but steadily, mostly because farmers
took up varieties that ripen before the first frost. In the south they fell in every year with a dry spring, and
recovered only where fields could be watered. The islands are a case of their own: there, the area under cultivation
shrank by a third, since young people left for the towns, while what remained was worked more intensively than before.
The authors warn against reading too much into single years. They recommend that stations measure soil moisture at
three depths, that prices be recorded weekly instead of monthly, and that the survey be repeated in five years' time
with the same questions, so that its results can be compared.
"""

SENTENCES = tuple(" ".join(text.split()) for text in _TEXTS.strip().split("\n\n"))
"""Queries, sentences and paragraphs of 2 to 130 words, in that order."""
