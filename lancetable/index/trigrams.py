"""Trigrams of strings, as NGRAM indexes contain them.

    "Crème, 3x"    folded to    c r e m e | | 3 x        | separates trigrams
                   trigrams     cre rem eme              token of cre = 13 x 37^2 + 28 x 37 + 15

Letters are converted to lower case, and characters outside of ASCII to ASCII letters and digits with the same meaning.
Every other character, and one without such a conversion, is a separator. A trigram consists of three letters or digits.
0 to 9 have the values 1 to 10, and a to z have 11 to 36. pylance does not convert the upper-case letters to which some
characters are folded, and computes their values in eight bits; these are reproduced here. All values of this module
are those of indexes written by pylance 14.0.2.
"""

from __future__ import annotations

import functools
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError
from lancetable.file.kernels.varbin import is_ascii, offsets_of, offsets_of_sizes

Int64 = npt.NDArray[np.int64]
Symbols = npt.NDArray[np.uint16]

_SEPARATOR: Final = 0x8000
_BASE: Final = 37


class Trigrams(NamedTuple):
    """(n,) tokens, and for each the index of its string, ascending. A token may repeat within a string."""

    tokens: npt.NDArray[np.uint32]
    strings: Int64


def trigrams(strings: pa.Array) -> Trigrams:
    """Return the trigrams of strings, none of which is null. Raises CorruptFileError if a string is not UTF-8."""
    symbols, offsets = _symbols_of(strings)
    values = symbols.astype(np.uint32)
    tokens = values[:-2] * np.uint32(_BASE**2) + values[1:-1] * np.uint32(_BASE) + values[2:]
    valid = (symbols[:-2] | symbols[1:-1] | symbols[2:]) < _SEPARATOR
    # A trigram of two strings starts at one of the last two symbols of a string.
    for back in (1, 2):
        crossing = offsets[1:] - back
        valid[crossing[(crossing >= 0) & (crossing < len(valid))]] = False
    starts = np.flatnonzero(valid)
    return Trigrams(tokens[starts], np.searchsorted(offsets, starts, "right") - 1)


@functools.lru_cache(maxsize=1024)
def trigrams_of(text: str) -> frozenset[int]:
    """Return the tokens of the trigrams of a string."""
    return frozenset(trigrams(pa.array([text], pa.string())).tokens.tolist())


def _symbols_of(strings: pa.Array) -> tuple[Symbols, Int64]:
    """Return the values of all characters after folding, and the (n + 1,) offsets of the strings in them."""
    offsets = offsets_of(strings).astype(np.int64)
    content = strings.buffers()[2]
    data = np.frombuffer(b"" if content is None else content, np.uint8)[offsets[0] : offsets[-1]]
    offsets -= offsets[0]
    if is_ascii(data):
        return _tables().ascii[data], offsets
    try:
        points = np.frombuffer(data.tobytes().decode().encode("utf-32-le"), "<u4")
    except UnicodeDecodeError as error:
        raise CorruptFileError(f"a string is not UTF-8: {error}") from error
    characters = offsets_of_sizes(data & 0xC0 != 0x80)[offsets]  # the number of characters before each string
    tables = _tables()
    known = np.where(points < len(tables.counts), points, 0x7F)
    counts = tables.counts[known]
    ends = np.cumsum(counts)
    places = np.repeat(tables.starts[known] - (ends - counts), counts) + np.arange(int(ends[-1]))
    return tables.symbols[places], np.append(0, ends)[characters]


class _Tables(NamedTuple):
    """Values of folded characters: of ASCII; and all in a row, with the start and the count of each code point."""

    ascii: Symbols
    symbols: Symbols
    starts: Int64
    counts: Int64


@functools.cache
def _tables() -> _Tables:
    folded = {point: chr(point).lower() for point in range(0x80)}
    for entry in _LETTERS.split():
        first, _, letters = entry.partition(":")
        folded |= {int(first, 16) + number: letter for number, letter in enumerate(letters)}
    for entry in _SEQUENCES.split():
        first, _, sequences = entry.partition(":")
        folded |= {int(first, 16) + number: text for number, text in enumerate(sequences.split(","))}
    size = max(folded) + 1
    counts = np.ones(size, np.int64)
    counts[list(folded)] = [len(text) for text in folded.values()]
    starts = offsets_of_sizes(counts)[:-1]
    symbols = np.full(int(counts.sum()), _SEPARATOR, np.uint16)
    for point, text in folded.items():
        symbols[starts[point] : starts[point] + len(text)] = [_symbol(character) for character in text]
    return _Tables(symbols[:0x80].copy(), symbols, starts, counts)


def _symbol(character: str) -> int:
    if not (character.isascii() and character.isalnum()):
        return _SEPARATOR
    return int(character) + 1 if character.isdigit() else (ord(character) - ord("a") + 11) & 0xFF


# Code points in hexadecimal, each with the letter or digit that it and the following code points are folded to.
_LETTERS: Final = """
AA:a B2:23 B9:1o C0:aaaaaa C7:ceeeeiiiidnooooo D8:ouuuuy E0:aaaaaa E7:ceeeeiiiidnooooo F8:ouuuuy
FF:yaaaaaaccccccccddddeeeeeeeeeegggggggghhhhiiiiiiii 131:i 134:jjkkkllllllllllnnnnnnnnnoooooo
154:rrrrrrssssssssttttttuuuuuuuuuuuuwwyyyzzzzzzs 1A0:oo 1AF:uu 1CD:aaiioouuuuuuuuuu 1DE:aaaa 1E6:ggkkoooo 1F0:j
1F4:gg 1F8:nnaa 1FE:ooaaaaeeeeiiiioooorrrruuuusstt 21E:hh 226:aaeeooooooooyy 2B0:h 2B2:jr 2B7:wy 2E1:lsx 1D2C:A
1D2E:B 1D30:DE 1D33:GHIJKLMN 1D3C:O 1D3E:PRTUWa 1D47:bde 1D4D:g 1D4F:kmno 1D56:ptu 1D5B:v 1D62:iruv 1D9C:c 1D9E:d
1DA0:f 1DBB:z 1E00:aabbbbbbccddddddddddeeeeeeeeeeffgghhhhhhhhhhiiiikkkkkkllllllllmmmmmmnnnnnnnnoooooooopppprr
1E5A:rrrrrrssssssssssttttttttuuuuuuuuuuvvvvwwwwwwwwwwxxxxyyzzzzzzhtwyas
1EA0:aaaaaaaaaaaaaaaaaaaaaaaaeeeeeeeeeeeeeeeeiiiioooooooooooooooooooooooouuuuuuuuuuuuuuyyyyyyyy 2070:0i 2074:456789
207F:n0123456789 2090:aeox 2095:hklmnpst 2102:CC 2109:FgHHHhhIILl 2115:N 2119:PQRRR 2124:Z 2128:Z 212A:kaBC 212F:eEF
2133:Mo 2139:i 2145:Ddeij 215F:1i 2164:v 2169:x 216C:lcdmi 2174:v 2179:x 217C:lcdm 2460:123456789
24B6:abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz0 2C7C:jV 32C0:123456789 3358:0123456789 3382:A 338C:Fg
3395:l 339B:m 33B2:s 33B6:V 33BC:0 33C0:kM 33E0:123456789 A7F1:SCFQ A7F8:H FF10:0123456789
FF21:abcdefghijklmnopqrstuvwxyz FF41:abcdefghijklmnopqrstuvwxyz 10795:h 107A2:o 107A5:q
1CCD6:ABCDEFGHIJKLMNOPQRSTUV01230123456789
1D400:ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZabcdefg
1D456:ijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyzA 1D49E:CD 1D4A2:G 1D4A5:JK 1D4A9:NOPQ
1D4AE:STUVWXYZabcd 1D4BB:f 1D4BD:hijklmn 1D4C5:pqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyzAB
1D507:DEFG 1D50D:JKLMNOPQ 1D516:STUVWXY 1D51E:abcdefghijklmnopqrstuvwxyzAB 1D53B:DEFG 1D540:IJKLM 1D546:O
1D54A:STUVWXY 1D552:abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyzABCDEFGHIJKL
1D5AC:MNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwx
1D606:yzABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghij
1D660:klmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyzi
1D7CE:01234567890123456789012345678901234567890123456789 1F12A:SCR 1F130:ABCDEFGHIJKLMNOPQRSTUVWXYZ 1FBF0:0123456789
"""

# The same for code points that are folded to several characters, separated by commas; - is a separator.
_SEQUENCES: Final = """
BC:14,12,34 C6:ae DE:th,ss E6:ae FE:th 130:i- 132:ij,ij 152:oe,oe 1C4:dz,dz,dz,lj,lj,lj,nj,nj,nj 1E2:ae,ae
1F1:dz,dz,dz 1FC:ae,ae 1D2D:AE 1E9E:ss 20A8:Rs 2100:a-c,a-s 2105:c-o,c-u 2116:No 2120:SM,TEL,TM 213B:FAX
2150:17,19,110,13,23,15,25,35,45,16,56,18,38,58,78 2161:ii,iii,iv 2165:vi,vii,viii,ix 216A:xi,xii 2171:ii,iii,iv
2175:vi,vii,viii,ix 217A:xi,xii 2189:03 2469:10,11,12,13,14,15,16,17,18,19,20
2488:1-,2-,3-,4-,5-,6-,7-,8-,9-,10-,11-,12-,13-,14-,15-,16-,17-,18-,19-,20-
3250:PTE,21,22,23,24,25,26,27,28,29,30,31,32,33,34,35 32B1:36,37,38,39,40,41,42,43,44,45,46,47,48,49,50
32C9:10,11,12,Hg,erg,eV,LTD 3362:10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,hPa,da,AU,bar,oV,pc,dm,dm2,dm3,IU
3380:pA,nA 3383:mA,kA,KB,MB,GB,cal,kcal,pF,nF 338E:mg,kg,Hz,kHz,MHz,GHz,THz 3396:ml,dl,kl,fm,nm
339C:mm,cm,km,mm2,cm2,m2,km2,mm3,cm3,m3,km3,ms,ms2,Pa,kPa,MPa,GPa,rad,rads,rads2,ps,ns 33B3:ms,pV,nV
33B7:mV,kV,MV,pW,nW 33BD:mW,kW,MW
33C2:a-m-,Bq,cc,cd,Ckg,Co-,dB,Gy,ha,HP,in,KK,KM,kt,lm,ln,log,lx,mb,mil,mol,PH,p-m-,PPM,PR 33DB:sr,Sv,Wb,Vm,Am
33E9:10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,gal A7F9:oe FB00:ff,fi,fl,ffi,ffl,st,st
10783:ae 1F100:0-,0-,1-,2-,3-,4-,5-,6-,7-,8-,9- 1F12D:CD,WZ 1F14A:HV,MV,SD,SS,PPV,WC 1F16A:MC,MD,MR 1F190:DJ
"""
