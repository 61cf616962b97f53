"""English words that rules do not bring together, and words that say nothing of a question's topic.

A stemmer knows "walked" from "walk", not "went" from "go"; people ask with the one ("where did
she go?") and tell with the other ("I went to ..."). Only forms that mean nothing else are listed:
"left", "found" and "saw" are words of their own.
"""

from __future__ import annotations

from typing import Final

_FORMS: Final = """
arise arose arisen; awake awoke awoken; be am is are was were been being; bear bore borne;
beat beaten; become became; begin began begun; bend bent; bind bound; bite bitten; bleed bled;
blow blew blown; break broke broken; breed bred; bring brought; build built; burn burnt;
buy bought; catch caught; choose chose chosen; cling clung; come came; creep crept; deal dealt;
dig dug; do does did done; draw drew drawn; dream dreamt; drink drank drunk; drive drove driven;
eat ate eaten; fall fell fallen; feed fed; feel felt; fight fought; flee fled; fly flew flown;
forbid forbade forbidden; forget forgot forgotten; forgive forgave forgiven; freeze froze frozen;
get got gotten; give gave given; go goes went gone; grow grew grown; hang hung; have has had;
hear heard; hide hid hidden; hold held; keep kept; kneel knelt; know knew known; lay laid;
lead led; lean leant; leap leapt; learn learnt; lend lent; light lit; lose lost; make made;
mean meant; meet met; pay paid; prove proven; ride rode ridden; ring rang rung; rise rose risen;
run ran; say said; seek sought; see seen; sell sold; send sent; sew sewn; shake shook shaken;
shine shone; shoot shot; show shown; shrink shrank shrunk; sing sang sung; sink sank sunk; sit sat;
sleep slept; slide slid; speak spoke spoken; speed sped; spell spelt; spend spent; spin spun;
stand stood; steal stole stolen; stick stuck; sting stung; strike struck; strive strove striven;
swear swore sworn; sweep swept; swell swollen; swim swam swum; swing swung; take took taken;
teach taught; tear tore torn; tell told; think thought; throw threw thrown;
understand understood; wake woke woken; wear wore worn; weave wove woven; weep wept; win won;
withdraw withdrew withdrawn; write wrote written;
child children; man men; woman women; person people; mouse mice; foot feet; tooth teeth;
goose geese; life lives; wife wives; knife knives; leaf leaves; half halves; shelf shelves
"""

BASE_FORMS: Final = {
    form: forms[0] for forms in (group.split() for group in _FORMS.split(";")) for form in forms[1:]
}
"""Base form by irregular form, in lower case."""

_GRAMMAR: Final = """
a about am an and any are as at be been being by can could did do does done for from had has
have he her hers him his how i if in into is it its many may me might mine more most much my
of on or our ours shall she should so some than that the their theirs them then there they
this to us was we were what when where which who whom whose why will with would you your yours
t s d ll m re ve ever
"""
FUNCTION_WORDS: Final = frozenset(_GRAMMAR.split())
"""What a question is built with. In what people tell, these words are everywhere or nowhere."""
