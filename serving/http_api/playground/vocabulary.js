// How the tokens of a model are written: its mask token, and the words that tokens stand for.

import { call, reading } from "./api.js";

const SPACE = "▁"; // of SentencePiece
const PIECE = "##"; // of WordPiece
const MASKS = ["[MASK]", "<mask>"];
const PROBE = "ß";
const PROBE_BYTE = "Ã"; // how byte-level vocabularies write the first byte of the probe

/** Return the mask token of a model, the first that is a token of its own, and whether its tokens are bytes. */
export async function vocabularyOf({ reference }) {
  const inputs = [...MASKS, PROBE].map((text) => ({ text }));
  const { reply } = await call("Tokenize", { model: reference, inputs });
  return reading(() => {
    const mask = MASKS.find((name, index) => reply.results[index].tokens.includes(name)) ?? MASKS[0];
    return { mask, isByteLevel: reply.results.at(-1).tokens.some((token) => token.includes(PROBE_BYTE)) };
  });
}

/** True if a token continues the word before it. */
export const continues = (token, { isByteLevel }) => !isByteLevel && token.startsWith(PIECE);

/** Return the word that a token stands for, without the space before it. */
export function wordOf(token, { isByteLevel }) {
  if (isByteLevel) return decodeBytes(token).trimStart();
  const mark = [SPACE, PIECE].find((item) => token.startsWith(item)) ?? "";
  return token.slice(mark.length);
}

/** Bytes by the characters that stand for them: printable ones for themselves, then others in order from 256 on. */
const BYTES = new Map();
const isPrintable = (byte) => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
let free = 256;
for (let byte = 0; byte < 256; byte += 1) {
  BYTES.set(String.fromCharCode(isPrintable(byte) ? byte : free), byte);
  if (!isPrintable(byte)) free += 1;
}

/** Return the text of a byte-level token. Special tokens, which are written as they are, may have other characters. */
function decodeBytes(token) {
  const bytes = [...token].map((character) => BYTES.get(character));
  return bytes.includes(undefined) ? token : new TextDecoder().decode(Uint8Array.from(bytes));
}
