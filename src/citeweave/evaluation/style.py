"""How the pages look: light or dark as the reader's system is, on paper, and on a phone.

The first colors are Okabe and Ito's (Color Universal Design, 2008), which differ for color-blind readers too; no twenty
do, so that names always stand beside. The shades of heat maps, `h0` to `h10`, are steps of one blue from the page's ground; text on them stays readable.
"""

from __future__ import annotations

PALETTE = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7b3fa0", "#8c510a", "#b0305f", "#8a8a1f"),
    *("#332288", "#2aa198", "#66a61e", "#f4808a", "#1f5a66", "#b39ddb", "#6d1f2b", "#c2a200", "#3f51d0", "#d081e8"),
)
"""On a light ground, those that differ most first; enough for the 19 fields of MAG."""

DARK_PALETTE = (
    *("#4fa3e0", "#ff7f32", "#2cc79a", "#e79ac4", "#f5b83d", "#9adcff", "#b98ae0", "#c98f4e", "#f0709e", "#cfcf5a"),
    *("#8f8ff0", "#7fdccb", "#9fdc5a", "#ff9aa2", "#4f9aa8", "#cbb8f5", "#b5525f", "#e5d04a", "#7f8cff", "#e3a6f5"),
)

GRAY, DARK_GRAY = "#a3abb5", "#6b7480"
"""Topics beyond the palette."""

SHADES = 11


def _rules(pattern: str, colors: list[str]) -> str:
    return "".join(pattern.format(at=at, color=color) for at, color in enumerate(colors))


def _mix(low: tuple[int, int, int], high: tuple[int, int, int]) -> list[str]:
    """Steps between two colors."""
    return [
        "#" + "".join(f"{round(a + (b - a) * step / (SHADES - 1)):02x}" for a, b in zip(low, high, strict=True))
        for step in range(SHADES)
    ]


_TOPIC, _SHADE = ".c{at}{{color:{color}}}", ".h{at}{{background:{color}}}"
_LIGHT = _rules(_TOPIC, [*PALETTE, GRAY]) + _rules(_SHADE, _mix((247, 251, 255), (125, 178, 224)))
_DARK = _rules(_TOPIC, [*DARK_PALETTE, DARK_GRAY]) + _rules(_SHADE, _mix((24, 30, 38), (20, 98, 160)))

STYLE = (
    """
:root{--ground:#fff;--ink:#1c2126;--muted:#59636e;--line:#d5dae0;--card:#f5f7f9;--bar:#56b4e9;--mark:#1c2126;
--accent:#0067a3;--good:#00714f;--warn:#9a4600;--track:#eef1f4}
"""
    + _LIGHT
    + """
@media screen and (prefers-color-scheme:dark){
:root{--ground:#14181d;--ink:#e6e9ed;--muted:#a0aab5;--line:#333b45;--card:#1d232a;--bar:#2f7fb5;--mark:#f2f4f6;
--accent:#6cb8f0;--good:#4fd0a4;--warn:#f5a55c;--track:#222931}
"""
    + _DARK
    + """}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;text-size-adjust:100%}
body{margin:0;background:var(--ground);color:var(--ink);font:1rem/1.5 system-ui,"Segoe UI",Roboto,"Helvetica Neue",
"Noto Sans","Liberation Sans",Arial,sans-serif;overflow-wrap:anywhere}
body.report{max-width:66rem;margin:0 auto;padding:1.5rem 1.25rem 4rem}
h1{font-size:1.7rem;line-height:1.25;margin:.2rem 0}
h2{font-size:1.2rem;margin:2.6rem 0 .6rem;padding-top:.7rem;border-top:1px solid var(--line)}
h3{font-size:1rem;margin:1.4rem 0 .4rem}
p{margin:.4rem 0;max-width:48rem}
ul{padding-left:1.2rem;max-width:56rem}
li{margin:.25rem 0}
a{color:var(--accent)}
nav{display:flex;flex-wrap:wrap;gap:.2rem 1rem;font-size:.92rem}
.muted,figcaption,small{color:var(--muted)}
.warn{color:var(--warn)}
.good{color:var(--good);font-weight:600}
:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(10.5rem,1fr));gap:.8rem;margin:1.2rem 0;padding:0;
list-style:none;max-width:none}
.cards li{background:var(--card);border:1px solid var(--line);border-radius:.6rem;padding:.7rem .9rem;margin:0}
.cards b{display:block;font-size:1.9rem;line-height:1.2;font-variant-numeric:tabular-nums}
.cards span,.cards small{display:block}
.scroll{overflow-x:auto;margin:.6rem 0}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.92rem}
th,td{padding:.3rem .7rem .3rem 0;text-align:left;vertical-align:baseline;border-bottom:1px solid var(--line)}
thead th{color:var(--muted);font-weight:600;vertical-align:bottom;overflow-wrap:normal}
tbody th{font-weight:400;min-width:6.5rem}
table.queries td{overflow-wrap:normal}
h1 small,th small{font-weight:400}
table.bars :is(th,td),table.forest :is(th,td){vertical-align:middle}
.num{text-align:right;white-space:nowrap}
td small{font-size:.86em;margin-left:.5rem;white-space:nowrap}
table.bars,table.forest{width:100%}
table.bars tbody th{width:26%}
table.bars tr.group th,table.forest tr.group th{font-weight:600;padding-top:.9rem}
.wide{width:50%;min-width:6.5rem;padding-right:0;vertical-align:middle}
svg.axis{width:100%;height:1.1rem;font-weight:400}
svg{display:block;max-width:100%}
svg.bar{width:100%;height:1.05rem}
svg .track{fill:var(--track)}
svg .fill{fill:var(--bar)}
svg .grid{stroke:var(--line);stroke-width:1}
svg .mark{stroke:var(--mark);stroke-width:1.6;fill:none}
svg .line{fill:none;stroke:currentColor;stroke-width:1.8}
svg .dots{fill:none;stroke:currentColor;stroke-linecap:round}
svg text{fill:var(--muted);font-size:12px;font-variant-numeric:tabular-nums}
svg [vector-effect]{shape-rendering:crispEdges}
.match svg{width:100%;min-width:46rem}
.match foreignObject{overflow:visible}
.match p{margin:0;max-width:none;font-size:13px;line-height:17px}
.match .port{fill:var(--muted)}
.match .ribbon{fill:currentColor}
.match .ribbon:hover{opacity:.95}
.n0{opacity:.2}.n1{opacity:.32}.n2{opacity:.46}.n3{opacity:.62}
table.pairs td:nth-child(n+3){min-width:15rem}
table.plan td small{display:block;margin:0}
table.plan tbody th{min-width:16rem}
table.plan thead th{text-align:center}
table.heat td,table.heat thead th{padding:.32rem .6rem;text-align:right;white-space:nowrap}
table.heat thead th{white-space:normal}
table.heat td{border:2px solid var(--ground)}
table.heat thead th:first-child{text-align:left;padding-left:0}
.panels{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(19rem,100%),1fr));gap:1.2rem 1.6rem}
.panels.large{grid-template-columns:repeat(auto-fill,minmax(min(24rem,100%),1fr))}
figure{margin:0}
figcaption{font-size:.86rem;margin-top:.2rem}
figcaption b{color:var(--ink)}
.key{display:inline-block;margin-right:.9rem;max-width:100%}
.key svg{display:inline-block;vertical-align:middle;margin-right:.3rem}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(22rem,100%),1fr));gap:0 2rem}
.pair table{width:100%}
details{margin:.6rem 0}
summary{cursor:pointer;color:var(--accent)}
.preview{max-width:34rem;border:1px solid var(--line);border-radius:.6rem;padding:.5rem}
@media (max-width:36rem){
body.report{padding:1rem .9rem 3rem}
h1{font-size:1.35rem}
.cards{grid-template-columns:repeat(auto-fill,minmax(8.5rem,1fr));gap:.6rem}
.cards b{font-size:1.5rem}
td small,th small{display:block;margin:0}
th,td{padding-right:.5rem}
.wide{width:38%;min-width:5rem}
tbody th,table.bars tbody th{min-width:5rem;width:auto}
}
@media print{
:root{--ground:#fff;--ink:#000;--muted:#444;--line:#bbb;--card:#fff;--mark:#000;--track:#f3f3f3}
body{print-color-adjust:exact;-webkit-print-color-adjust:exact;font-size:10pt}
body.report{max-width:none;padding:0}
nav{display:none}
h2,h3{break-after:avoid}
tr,figure,.cards li{break-inside:avoid}
.scroll{overflow:visible}
details::details-content{content-visibility:visible;block-size:auto}
}
body.map{display:grid;grid-template:auto 1fr/1fr 19rem;height:100vh;height:100dvh;overflow:hidden}
body.map header{grid-column:1/-1;padding:.6rem 1rem;border-bottom:1px solid var(--line)}
body.map h1{font-size:1.15rem}
body.map header p{font-size:.88rem;max-width:none;margin:.15rem 0}
#stage{position:relative;min-width:0;min-height:0;overflow:hidden}
#plot{position:absolute;inset:0;width:100%;height:100%;touch-action:none;cursor:grab;display:block}
#plot:active{cursor:grabbing}
#plot:focus-visible{outline-offset:-3px}
#tip{position:absolute;max-width:min(22rem,80%);padding:.35rem .6rem;background:var(--card);color:var(--ink);
border:1px solid var(--line);border-radius:.4rem;font-size:.86rem;line-height:1.35;pointer-events:none;
box-shadow:0 2px 8px #0003}
#tip:empty{display:none}
#tip small{display:block}
#tools{position:absolute;right:.7rem;bottom:.7rem;display:flex;gap:.3rem}
button{font:inherit;font-size:.88rem;color:var(--ink);background:var(--card);border:1px solid var(--line);
border-radius:.4rem;padding:.25rem .6rem;cursor:pointer}
button:hover{border-color:var(--accent)}
#tools button{min-width:2.3rem;min-height:2.3rem;font-size:1.05rem}
aside{border-left:1px solid var(--line);padding:.8rem;overflow-y:auto;font-size:.9rem;min-height:0}
aside h2{font-size:.95rem;margin:1rem 0 .3rem;padding:0;border:0}
aside input[type=search]{width:100%;font:inherit;font-size:1rem;color:var(--ink);background:var(--ground);
border:1px solid var(--line);border-radius:.4rem;padding:.35rem .5rem}
aside ul{list-style:none;padding:0;margin:.4rem 0}
#found button{width:100%;text-align:left;background:none;border-color:transparent;padding:.2rem .3rem}
#found button:hover,#found button:focus-visible{border-color:var(--line);background:var(--card)}
#legend label{display:flex;gap:.45rem;align-items:center;padding:.12rem .2rem;border-radius:.3rem;cursor:pointer}
#legend label:hover{background:var(--card)}
#legend i{flex:none;width:.75rem;height:.75rem;border-radius:50%;align-self:center;background:currentColor}
#legend span{flex:1}
#legend small{font-variant-numeric:tabular-nums}
@media (max-width:44rem){
body.map{display:block;height:auto;overflow:visible}
#stage{height:62vh;height:62dvh}
aside{border-left:0;border-top:1px solid var(--line)}
}
"""
).strip()
"""One sheet for every page, so that a report and its map look alike."""
