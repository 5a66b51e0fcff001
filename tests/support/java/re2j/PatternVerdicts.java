package com.google.re2j;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;

/** Matcher of lines with a pattern and texts in hexadecimal UTF-8; prints an error, or 0 or 1 for each text. */
public final class PatternVerdicts {
    private PatternVerdicts() {}

    private static String text(String word) {
        return new String(HexFormat.of().parseHex(word.substring(1)), StandardCharsets.UTF_8);
    }

    public static void main(String[] args) throws Exception {
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            var found = new StringBuilder();
            try {
                Pattern pattern = Pattern.compile(text(words[0]));
                for (int at = 1; at < words.length; at++) {
                    found.append(pattern.matcher(text(words[at])).matches() ? '1' : '0');
                }
            } catch (PatternSyntaxException error) {
                found.append("error");
            } catch (RuntimeException failure) {
                found.append("failure ").append(failure);
            }
            System.out.println(found);
        }
    }
}
